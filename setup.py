"""Build of the compiled engine, which is optional; everything else stands in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "tandemq._engine",
            ["src/tandemq/engine/engine.pyx"],
            depends=["src/tandemq/engine/crc32.h"],
            include_dirs=["src/tandemq/engine"],
            extra_compile_args=["-O3"],
            optional=True,
        )
    ]
)
