#!/bin/sh
# Resolve the dependencies of pyproject.toml into requirements.lock, -spark.lock, -docs.lock, -console.lock, -s3.lock,
# -grpc-client.lock, -cpp-client.lock, -release.lock, -kubernetes.lock, -readers.lock, -kafka-clients.lock, -airflow.lock, -dagster.lock and -dbt.lock, with the hashes of every published file, so that the locks serve each supported Python and processor. Runs on
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
    echo '# What the data pipeline needs on top (the extras `spark` and `iceberg`), pinned likewise, in agreement with requirements.lock.'
    echo '# pyspark is a source archive: its build uses the setuptools of requirements.lock. Made by `make lock`; do not edit.'
    .lock-venv/bin/python -m piptools compile --quiet --extra spark --extra iceberg --generate-hashes --allow-unsafe --strip-extras \
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
# Resolves an environment of its own: the name of its lock file, the file's first line, and what it needs.
apart() {
    name=$1 title=$2
    shift 2
    printf '%s\n' "$@" >.lock-venv/apart.in
    {
        echo "# $title"
        echo '# Made by `make lock`; do not edit.'
        .lock-venv/bin/python -m piptools compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate \
            --no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file - .lock-venv/apart.in
    } >"requirements-$name.lock.tmp"
    mv "requirements-$name.lock.tmp" "requirements-$name.lock"
}

apart s3 'The S3 server of the tests (moto), which needs other versions than requirements.lock.' \
    'moto[s3]>=5.1' 'flask>=3' 'flask-cors>=6'
apart grpc-client "RocketMQ's Python gRPC client for the tests, whose generated classes of the protocol conflict with others." \
    'rocketmq-python-client==5.1.2'
apart cpp-client "RocketMQ's C++ client with its Python binding, for clients under faults." 'rocketmq==0.4.4'
apart release 'What `make release` checks its files with.' 'cyclonedx-python-lib[json-validation]>=11' 'twine>=6'
apart kubernetes 'What validates the Helm chart for Kubernetes.' 'kubernetes-validate>=1.37'
apart readers 'Readers of Delta and Iceberg tables, with which the tests read what the jobs write.' \
    'duckdb>=1.5' 'duckdb-extension-delta>=1.5' 'duckdb-extension-avro>=1.5' 'duckdb-extension-httpfs>=1.5' \
    'duckdb-extension-iceberg>=1.5' 'polars>=2' 'deltalake>=1' 'pyiceberg[pyarrow]>=0.12' 'pytz>=2025'
apart kafka-clients "Kafka's Python clients, for tests of \`tandemq kafka\` and \`python -m bench.beside_aiokafka\`." \
    'aiokafka>=0.14' 'confluent-kafka>=2.16'
apart airflow 'Airflow for its recipe in docs/guides/pipeline-schedulers.md.' \
    'apache-airflow>=3.3' 'apache-airflow-providers-standard>=1.21'
apart dagster 'Dagster for its recipe in docs/guides/pipeline-schedulers.md.' 'dagster>=1.13'
# dbt-core 1.12 needs a package that downloads its files when it is built.
apart dbt 'dbt with DuckDB for its recipe in docs/guides/pipeline-schedulers.md.' \
    'dbt-core>=1.11,<1.12' 'dbt-duckdb>=1.10' 'deltalake>=1.6' 'pyarrow>=18'
rm -rf .lock-venv
