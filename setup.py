"""The packages of the wheel, which pyproject.toml cannot list without naming each: attnjax, and configs/ as attnjax.configs."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["attnjax*"]), "attnjax.configs"], package_dir={"attnjax.configs": "configs"})
