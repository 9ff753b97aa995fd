"""How the encoding of a run is called, in one word: in the index, in rows of records, on a page."""

from attnjax.config.schema import EncodingConfig, ModelConfig


def encoding_name(model: ModelConfig, *, options: bool = False) -> str:
    """The name of a model's encoding; layers with encodings of their own give each distinct one once, joined by "+".

    `options`: each with the options it was given, "rope(theta=500.0)".
    """

    def named(one: EncodingConfig) -> str:
        given = ", ".join(f"{key}={value}" for key, value in dict(one.options).items())
        return f"{one.name}({given})" if options and given else one.name

    return "+".join(dict.fromkeys(map(named, model.encodings)))
