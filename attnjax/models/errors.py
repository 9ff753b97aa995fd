"""The errors of folders of weights. Each is a `ModelError`, and so a ValueError, which catches them all at once."""


class ModelError(ValueError):
    """A folder of weights, or what is asked of it, is wrong. The base of the errors of `attnjax.models`.

    Example:
      >>> from attnjax.models import load
      >>> load("no such folder")
      Traceback (most recent call last):
          ...
      attnjax.models.errors.DamagedFile: no such folder must be a folder with config.json and safetensors files, but ...
    """


class DamagedFile(ModelError):
    """A file is missing, cut off, too large, or of another format than its name says."""


class UnsafePath(ModelError):
    """A file name leads out of the folder, or to something that is no regular file."""


class UnsupportedFormat(ModelError):
    """The architecture, or the format of the weights, is not supported."""


class WrongWeights(ModelError):
    """The names, shapes or dtypes of the weights are not those that config.json implies."""


class MissingPackage(ModelError):
    """An optional library that this function needs is not installed."""
