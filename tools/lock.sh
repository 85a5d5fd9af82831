#!/bin/sh
# Resolve the dependencies of pyproject.toml into requirements.lock, -spark.lock, -docs.lock, -console.lock, -s3.lock,
# -grpc-client.lock, -release.lock, -kubernetes.lock and -aiokafka.lock, with the hashes of every published file, so that the locks serve each supported Python and processor. Runs on
# the oldest supported Python: its set covers the newer ones.
set -eu
cd "$(dirname "$0")/.."

python3.11 -m venv --clear .lock-venv
.lock-venv/bin/python -m pip install --quiet pip-tools
{
    echo '# Everything `make` needs, pinned with the hashes of all published files. Made by `make lock`; do not edit.'
    echo '# It holds no address of an index: pip takes the files from the one it is configured for.'
    .lock-venv/bin/python -m piptools compile --quiet --extra dev --generate-hashes --allow-unsafe --strip-extras \
        --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file - pyproject.toml
} >requirements.lock.tmp
mv requirements.lock.tmp requirements.lock
{
    echo '# What the data pipeline needs on top (the extra `spark`), pinned likewise, in agreement with requirements.lock.'
    echo '# pyspark is a source archive: its build uses the setuptools of requirements.lock. Made by `make lock`; do not edit.'
    .lock-venv/bin/python -m piptools compile --quiet --extra spark --generate-hashes --allow-unsafe --strip-extras \
        --constraint requirements.lock --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
        --output-file - pyproject.toml
} >requirements-spark.lock.tmp
mv requirements-spark.lock.tmp requirements-spark.lock
{
    echo '# What `make docs` needs on top (the extra `docs`), pinned likewise, in agreement with requirements.lock.'
    echo '# Made by `make lock`; do not edit.'
    .lock-venv/bin/python -m piptools compile --quiet --extra docs --generate-hashes --allow-unsafe --strip-extras \
        --constraint requirements.lock --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
        --output-file - pyproject.toml
} >requirements-docs.lock.tmp
mv requirements-docs.lock.tmp requirements-docs.lock
{
    echo '# What the console and its tests need on top (the extras `console` and `browser`), pinned likewise, in agreement'
    echo '# with requirements.lock. Made by `make lock`; do not edit.'
    .lock-venv/bin/python -m piptools compile --quiet --extra console --extra browser --generate-hashes --allow-unsafe \
        --strip-extras --constraint requirements.lock --no-header --no-emit-index-url --no-emit-trusted-host \
        --no-emit-find-links --output-file - pyproject.toml
} >requirements-console.lock.tmp
mv requirements-console.lock.tmp requirements-console.lock
{
    echo '# The S3 server of the tests (moto), in an environment of its own, .venv-s3: it needs other versions than requirements.lock.'
    echo '# Made by `make lock`; do not edit.'
    printf 'moto[s3]>=5.1\nflask>=3\nflask-cors>=6\n' >.lock-venv/s3.in
    .lock-venv/bin/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate \
        --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file - .lock-venv/s3.in
} >requirements-s3.lock.tmp
mv requirements-s3.lock.tmp requirements-s3.lock
{
    echo "# RocketMQ's Python gRPC client for the tests, in an environment of its own: its generated classes of the protocol conflict with"
    echo '# others in one process. Made by `make lock`; do not edit.'
    echo 'rocketmq-python-client==5.1.2' >.lock-venv/grpc-client.in
    .lock-venv/bin/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate \
        --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file - .lock-venv/grpc-client.in
} >requirements-grpc-client.lock.tmp
mv requirements-grpc-client.lock.tmp requirements-grpc-client.lock
{
    echo '# What `make release` checks its files with, in an environment of its own, .venv-release. Made by `make lock`; do not edit.'
    printf 'cyclonedx-python-lib[json-validation]>=11\ntwine>=6\n' >.lock-venv/release.in
    .lock-venv/bin/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate \
        --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file - .lock-venv/release.in
} >requirements-release.lock.tmp
mv requirements-release.lock.tmp requirements-release.lock
{
    echo '# What validates the Helm chart for Kubernetes, in an environment of its own. Made by `make lock`; do not edit.'
    echo 'kubernetes-validate>=1.37' >.lock-venv/kubernetes.in
    .lock-venv/bin/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate \
        --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file - .lock-venv/kubernetes.in
} >requirements-kubernetes.lock.tmp
mv requirements-kubernetes.lock.tmp requirements-kubernetes.lock
{
    echo "# Kafka's Python client for \`python -m bench.beside_aiokafka\`, in an environment of its own. Made by \`make lock\`; do not edit."
    echo 'aiokafka>=0.14' >.lock-venv/aiokafka.in
    .lock-venv/bin/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate \
        --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file - .lock-venv/aiokafka.in
} >requirements-aiokafka.lock.tmp
mv requirements-aiokafka.lock.tmp requirements-aiokafka.lock
rm -rf .lock-venv
