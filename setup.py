"""Build of the compiled engine; everything else stands in pyproject.toml.

It is left out if it cannot be built, unless TANDEMQ_ENGINE=compiled. With TANDEMQ_ENGINE=python it is not tried.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

wanted = os.environ.get("TANDEMQ_ENGINE", "")
engine = Extension(
    "tandemq._engine",
    ["src/tandemq/engine/engine.pyx"],
    depends=[str(path) for kind in ("*.h", "*.pxi") for path in sorted(Path("src/tandemq/engine").glob(kind))],
    include_dirs=["src/tandemq/engine"],
    extra_compile_args=["-O3"],
    optional=wanted != "compiled",
)
setup(ext_modules=[] if wanted == "python" else [engine])
