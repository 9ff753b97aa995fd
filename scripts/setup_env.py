"""Makes the virtual environment in which README's commands run, once, and prints the path of its interpreter.

    python3 scripts/setup_env.py           .venv, from the first Python that is new enough: what experiments need
    python3 scripts/setup_env.py --dev     the same with what tests and linters need
    python3 scripts/setup_env.py --other   .venv-other, with --dev and the other supported set of versions; prints nothing
                                             if no interpreter for it is found
    python3 scripts/setup_env.py --compile .venv-compile, with the compilers for accelerators that are not here, about 450 MB
                                             (Linux with x86-64); apart, because JAX looks for the devices of every compiler

Python 3.11 gets the last JAX that supports it, every later Python up to 3.14 the newest one (see constraints.txt). Every file
that is installed is one whose SHA-256 stands in requirements.txt, requirements-dev.txt or requirements-compile.txt, and none of
them is built or runs code while it is installed. Nothing is done when these files, pyproject.toml and the interpreter are those
of the last call. An environment that lacks what tests need gets that in addition, since it may be in use. Of several calls at
once one makes it, and the others wait.
Only the standard library is used, and no syntax newer than Python 3.6, so that an old interpreter can say what is wrong,
or find a newer one.
"""

import argparse
import contextlib
import fcntl
import glob
import hashlib
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST, NEWEST = (3, 11), (3, 14)
"""Between them are those for which the files in the lists below were made."""
NEWER_STACK = (3, 12)
PREFERRED = ("3.12", "3.13", "3.14", "3.11")
LISTS = {"plot": "requirements.txt", "dev": "requirements-dev.txt", "compile": "requirements-compile.txt"}
"""What is installed for each extra of the package."""
STAMP = "attnjax-stamp"
"""In an environment that was made here, what it was made from."""
INPUTS = ("pyproject.toml", *LISTS.values())


def say(text):
    """One line about what is being done; stdout is kept for the answer."""
    print("attnjax: " + text, file=sys.stderr, flush=True)


def dotted(version):
    """3.11.7 for (3, 11, 7)."""
    return ".".join(str(part) for part in version)


def candidates():
    """Interpreters worth asking: the running one, those on PATH, those of pyenv."""
    yield sys.executable
    folders = os.environ.get("PATH", "").split(os.pathsep)
    for name in ("python3", *("python" + version for version in PREFERRED)):
        yield from (os.path.join(folder, name) for folder in folders)
    pyenv = os.environ.get("PYENV_ROOT") or os.path.join(os.path.expanduser("~"), ".pyenv")
    for version in PREFERRED:
        yield from sorted(glob.glob(os.path.join(pyenv, "versions", version + "*", "bin", "python3")))


def describe(path):
    """(version, real path) of an interpreter, or of that behind an environment; None where it does not run."""
    question = "import os, sys; print(*sys.version_info[:3]); base = getattr(sys, '_base_executable', sys.executable)"
    question += "; print(os.path.realpath(base))"
    try:
        answer = subprocess.check_output([path, "-c", question], stderr=subprocess.DEVNULL, universal_newlines=True)
        version, executable = answer.splitlines()
        return tuple(int(part) for part in version.split()), executable
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def interpreters():
    """Version and path of every interpreter found for which there are packages, in order of preference."""
    asked = set()
    for path in candidates():
        if path in asked or not os.access(path, os.X_OK):
            continue
        asked.add(path)
        found = describe(path)
        if found and OLDEST <= found[0][:2] <= NEWEST:
            yield found


def choose(other):
    """The interpreter to use, or None. The other stack is judged against the interpreter that the first one gets."""
    main = next(interpreters(), None)
    if main is None or not other:
        return main
    newer = main[0] >= NEWER_STACK
    return next((found for found in interpreters() if (found[0] >= NEWER_STACK) != newer), None)


def fingerprint(venv, version, executable):
    """Changes when anything does that the environment was made from, but for how much of it was installed."""
    digest = hashlib.sha256(repr((venv, version, executable)).encode())
    for name in INPUTS:
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def create(venv, executable):
    """Make an empty environment, and return the start of a pip command for it."""
    make = [executable, "-m", "venv", venv]
    if subprocess.call(make, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) != 0:
        # Debian ships Python without the bundled pip that `venv` copies.
        subprocess.check_call([*make, "--without-pip"])
    return pip_of(venv, executable)


def pip_of(venv, executable):
    """The start of a pip command for an environment: with its own pip, or with that of the interpreter."""
    python = os.path.join(venv, "bin", "python")
    if glob.glob(os.path.join(venv, "lib", "python*", "site-packages", "pip")):
        return [python, "-m", "pip"]
    return [executable, "-m", "pip", "--python", python]


def installations(extra):
    """Arguments of two installations: of everything that is fetched, by its hash, and of the package with what is there."""
    yield ["--require-hashes", "--only-binary", ":all:", "-r", os.path.join(ROOT, LISTS[extra])]
    yield ["--no-deps", "--no-build-isolation", "-e", ROOT]


def install(venv, executable, arguments):
    """Install with uv where it is on PATH, which is faster, and with pip where it is not or fails."""
    uv, python = shutil.which("uv"), os.path.join(venv, "bin", "python")
    with_uv = [uv, "pip", "install", "--quiet", "--python", python, *arguments]
    if uv is None or subprocess.call(with_uv, stdout=sys.stderr) != 0:
        # Modules are compiled when they are first imported, which most of them never are.
        with_pip = [*pip_of(venv, executable), "install", "-qq", "--no-compile", *arguments]
        subprocess.check_call(with_pip, stdout=sys.stderr)


def ensure(venv, version, executable, extra):
    """Path of the interpreter of an environment that holds the package, its dependencies and what the extra names."""
    python, wanted = os.path.join(venv, "bin", "python"), fingerprint(venv, version, executable)
    if extra in present(venv, wanted):
        return python
    label = os.path.relpath(venv, ROOT)
    with locked(venv, label):
        there = present(venv, wanted)
        if extra not in there:
            if not there:
                say(f"creating {label} with Python {dotted(version)}")
                clear(venv, label)
                create(venv, executable)
            say(f"installing attnjax[{extra}] and its pinned dependencies into {label} (once)")
            for arguments in list(installations(extra))[: 1 if there else None]:
                install(venv, executable, arguments)
            write_stamp(venv, wanted + " " + extra)
    return python


def present(venv, wanted):
    """The extras whose packages an environment of this fingerprint holds; none where it is another one, or there is none."""
    try:
        with open(os.path.join(venv, STAMP)) as file:
            made, _, extra = file.read().partition(" ")
    except OSError:
        return ()
    return ("plot", extra) if made == wanted and os.path.exists(os.path.join(venv, "bin", "python")) else ()


def clear(venv, label):
    """Delete an environment that was made here, but for its stamp; one that was cut short has an empty stamp."""
    names = os.listdir(venv)
    if names and STAMP not in names:
        sys.exit(
            f"attnjax: {label} was not made by this script, which would empty it: move it away, or use it as it is"
        )
    write_stamp(venv, "")
    for entry in os.scandir(venv):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name != STAMP:
            os.remove(entry.path)


def write_stamp(venv, text):
    """Say what an environment was made from."""
    with open(os.path.join(venv, STAMP), "w") as file:
        file.write(text)


@contextlib.contextmanager
def locked(venv, label):
    """One process at a time; the others wait."""
    os.makedirs(venv, exist_ok=True)
    folder = os.open(venv, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another process, which makes " + label)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def main():
    """Print the interpreter to use; exit with a message where there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", action="store_true", help="the other supported set of versions, in .venv-other")
    parser.add_argument("--dev", action="store_true", help="with the tools of tests and linters")
    parser.add_argument(
        "--compile", action="store_true", help="with the compilers for absent accelerators, in .venv-compile"
    )
    arguments = parser.parse_args()
    other = arguments.other and not arguments.compile
    found = choose(other)
    if found is None and other:
        say("no second Python (one of 3.11 and 3.12 or newer) on PATH or under pyenv: the other stack is not available")
        return
    if found is None:
        sys.exit(
            f"attnjax needs Python {dotted(OLDEST)} to {dotted(NEWEST)}, but python3 is {dotted(sys.version_info[:3])} "
            f"({sys.executable}), and no such one is on PATH or under pyenv. Install one, or put it first on PATH."
        )
    try:
        folder = ".venv-compile" if arguments.compile else ".venv-other" if other else ".venv"
        extra = "compile" if arguments.compile else "dev" if other or arguments.dev else "plot"
        print(ensure(os.path.join(ROOT, folder), *found, extra))
    except subprocess.CalledProcessError as error:
        sys.exit(f"attnjax: could not make the environment, this failed: {' '.join(error.cmd)}")


if __name__ == "__main__":
    main()
