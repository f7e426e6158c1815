"""The native kernel; everything else that setuptools needs is in ``setup.cfg``.

The kernel is a shared library with a plain C interface, not an extension of Python: it is loaded
with ctypes from beside the package (``core/native_library.py``). So no header of Python or
torch is needed, one wheel serves every version of Python, and a machine without a compiler
installs without it.
"""

import contextlib
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# -ffp-contract=off: one result on every processor, the one of the slow path.
FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-g0",
    "-Wno-psabi",
]
# The warning at the first use is in spatial/resampling/native_resampler.py.
LOST = """
voxpipe: the native kernel was not built, because the compiler failed: {why}
voxpipe works without it. Patches are the same to the bit, but resampling and decoding take the
slow path in NumPy, which is many times slower. Install a C++17 compiler (Debian: g++, macOS:
xcode-select --install), then build it again, without the wheel that pip has cached:
pip install --force-reinstall --no-deps --no-cache-dir --no-binary voxpipe voxpipe
"""


def tell_user(text):
    """Write to the log of the installer, and to the terminal, because pip hides its log."""
    sys.stderr.write(text)
    sys.stderr.flush()
    if not sys.stderr.isatty():
        with contextlib.suppress(OSError), open("/dev/tty", "w") as terminal:
            terminal.write(text)


class PlainLibrary(build_ext):
    """Names the library without the version of Python."""

    def build_extensions(self):
        """Compile the sources of a library at once."""
        compile_sources = self.compiler.compile

        def compile_at_once(sources, **options):
            """Compile the sources in parallel: one after another they take a minute."""
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                objects = threads.map(lambda one: compile_sources([one], **options), sources)
                return list(chain.from_iterable(objects))

        self.compiler.compile = compile_at_once
        super().build_extensions()

    def build_extension(self, ext):
        """Build the library; tell what is lost if that fails, and continue without it."""
        try:
            super().build_extension(ext)
        except Exception as error:
            tell_user(LOST.format(why=error))
            raise  # build_ext catches it, because the library is optional

    def get_ext_filename(self, fullname):
        """Return ``voxpipe/_native.so``: a name that Python would load, so that it finds it."""
        return str(Path(*fullname.split("."))) + (".pyd" if self.plat_name[:3] == "win" else ".so")

    def get_export_symbols(self, ext):
        """Return what Windows is to export; there is no function that Python would call."""
        return ext.export_symbols


class AnyPython(bdist_wheel):
    """Tags the wheel for every Python on this platform."""

    def get_tag(self):
        """Return ``py3-none-<platform>``."""
        return ("py3", "none", super().get_tag()[2])


kernel = Extension(
    "voxpipe._native",
    sources=[
        f"native/{name}.cpp"
        for name in ("kernel", "chunks", "path_portable", "path_avx2", "path_avx512")
    ],
    depends=sorted(str(header) for header in Path("native").glob("*.h")),
    extra_compile_args=FLAGS,
    language="c++",
    optional=True,  # without a compiler: a warning now, and another at first use
)

setup(ext_modules=[kernel], cmdclass={"build_ext": PlainLibrary, "bdist_wheel": AnyPython})
