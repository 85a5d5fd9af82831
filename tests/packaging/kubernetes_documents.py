"""Kubernetes objects in YAML from standard input, as JSON; run by an environment with kubernetes-validate.

    python kubernetes_documents.py VERSION... < objects.yaml

It prints {"documents": [...], "problems": ["KIND NAME, VERSION: …"]}. Unknown fields are problems, too. Objects of
monitoring.coreos.com have no schema here and are not validated.
"""

import importlib
import json
import sys
from typing import Any

EXTENSION = "monitoring.coreos.com/"


def main() -> None:
    yaml: Any = importlib.import_module("yaml")
    validator: Any = importlib.import_module("kubernetes_validate")
    documents = [found for found in yaml.safe_load_all(sys.stdin) if found is not None]
    problems = []
    for document in documents:
        if document["apiVersion"].startswith(EXTENSION):
            continue
        for version in sys.argv[1:]:
            try:
                validator.validate(document, version, strict=True)
            except validator.ValidationError as error:
                place = ".".join(map(str, error.absolute_path))
                name = f"{document['kind']} {document['metadata']['name']}"
                problems.append(f"{name}, {version}: {place}: {error.message}")
    print(json.dumps({"documents": documents, "problems": problems}))


if __name__ == "__main__":
    main()
