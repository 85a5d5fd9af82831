"""Catalogue of Iceberg tables: the service that knows their newest versions, through pyiceberg and its configuration.

    iceberg://prod/messages.orders    table `orders` of namespace `messages` in the catalogue that pyiceberg's
                                      configuration names `prod` (PYICEBERG_CATALOG__PROD__…, ~/.pyiceberg.yaml)

A call is repeated while the catalogue does not respond, for at most `AWAY_S`. Errors have one line and no credentials.

Source: docs/guides/pipeline-lakes.md, "Iceberg"; Iceberg REST catalogue specification, "commit table".
"""

import logging
import re
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from requests.exceptions import ChunkedEncodingError, RequestException, Timeout
from requests.exceptions import ConnectionError as ConnectionFailed

from tandemq.errors import ConfigError, LocalError, TandemError
from tandemq.spark.runtime.location import ICEBERG

try:
    from sqlalchemy.exc import OperationalError, SQLAlchemyError
except ImportError:  # catalogues in databases need it
    OperationalError = SQLAlchemyError = ConnectionFailed  # type: ignore[misc,assignment]

log = logging.getLogger(__name__)
T = TypeVar("T")
AWAY_S = 60.0
"""Time for which a call is repeated while the catalogue does not respond."""
PAUSE_S = 0.5
"""Pause before the first repetition; it doubles up to `PAUSE_MAX_S`."""
PAUSE_MAX_S = 5.0
REQUEST_S = 60.0
"""Time for the response to one request."""
AWAY = (
    ChunkedEncodingError,
    ConnectionFailed,
    Timeout,
    ServiceUnavailableError,
    TooManyRequestsError,
    ServerError,
    OperationalError,
)
DENIED = (AuthorizationExpiredError, ForbiddenError, OAuthError, UnauthorizedError)
ERRORS = (
    RESTError,
    RequestException,
    SQLAlchemyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    OSError,
    ValueError,
)
CHARACTERS_MAX = 300
STORAGE_OPTIONS = {
    "s3.endpoint": "aws_endpoint_url",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
    "client.region": "aws_region",
    "s3.force-virtual-addressing": "aws_virtual_hosted_style_request",
    "adls.account-name": "azure_storage_account_name",
    "adls.account-key": "azure_storage_account_key",
    "adls.sas-token": "azure_storage_sas_token",
    "adls.tenant-id": "azure_storage_tenant_id",
    "adls.client-id": "azure_storage_client_id",
    "adls.client-secret": "azure_storage_client_secret",
}
"""Names of pyiceberg's options of a store, and deltalake's, with which tasks write files."""
_SECRET = re.compile(r"secret|token|credential|password|key|sas|auth", re.IGNORECASE)
_USER = re.compile(r"://[^/@\s]*@")


class Catalogue:
    """A connection to the catalogue of one table."""

    def __init__(self, url: str) -> None:
        """Load pyiceberg's configuration, and connect.

        Args:
            url: iceberg://CATALOGUE/NAMESPACE.TABLE
        Raises:
            ConfigError: the catalogue is not configured, or refuses its credentials.
            LocalError: it does not respond.
        """
        self.url = url
        self._name, _, self.table = url.removeprefix(f"{ICEBERG}://").partition("/")
        self._secrets: list[str] = []
        self._catalog: Catalog = self.call(self._connect)

    def _connect(self) -> Catalog:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # one of them shows the address, with its user
                found = load_catalog(self._name)
        except ValueError as error:
            if "URI missing" in str(error) or "properties" in str(error):
                raise ConfigError(
                    f"{self.url}: pyiceberg's configuration has no catalogue {self._name!r}",
                    hint=f"set PYICEBERG_CATALOG__{self._name.upper()}__URI, or write ~/.pyiceberg.yaml",
                ) from None
            raise
        self._secrets = [
            value for name, value in found.properties.items() if _SECRET.search(name) and isinstance(value, str)
        ]
        session = getattr(found, "_session", None)
        if session is not None:  # of the REST catalogue; it would wait forever
            session.request = partial(session.request, timeout=REQUEST_S)
        return found

    @property
    def namespace(self) -> str:
        """Namespace of the table."""
        return self.table.rpartition(".")[0]

    def load(self) -> Any:
        """Return the table; None if there is none. Raises as `call`."""
        try:
            return self.call(lambda: self._catalog.load_table(self.table))
        except LocalError as error:
            if isinstance(error.__cause__, NoSuchTableError):
                return None
            raise

    def create(self, schema: Schema, order: SortOrder, properties: Mapping[str, str]) -> None:
        """Create the table, and its namespace if there is none.

        Args:
            order: of the rows that other tools write.
        Raises:
            As `call`. TableAlreadyExistsError: another process has created it.
        """
        if not self.call(lambda: self._catalog.namespace_exists(self.namespace)):
            self.call(lambda: self._catalog.create_namespace_if_not_exists(self.namespace))
        self.call(lambda: self._catalog.create_table(self.table, schema, sort_order=order, properties=dict(properties)))

    def commit(self, table: Any, requirements: tuple[Any, ...], updates: tuple[Any, ...]) -> None:
        """Send a commit once, and load the new version into the table. Raises errors of pyiceberg and its libraries."""
        done = self._catalog.commit_table(table, requirements, updates)
        if not isinstance(self._catalog, RestCatalog):  # a service does it by itself
            self._catalog._delete_old_metadata(table.io, table.metadata, done.metadata)  # noqa: SLF001
        table.metadata, table.metadata_location = done.metadata, done.metadata_location

    def call(self, operation: Callable[[], T]) -> T:
        """Call an operation, again while the catalogue does not respond.

        Raises:
            ConfigError: the credentials are refused. LocalError: it does not respond, or reports another error.
        """
        until = time.monotonic() + AWAY_S
        pause = PAUSE_S
        while True:
            try:
                return operation()
            except AWAY as error:
                if time.monotonic() + pause > until:
                    raise self.error(error) from error
                log.warning("lake: the catalogue of %s does not respond, waiting for it", self.url)
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)
            except ERRORS as error:
                raise self.error(error) from error

    def error(self, error: Exception) -> TandemError:
        """Return the error to raise for one of `ERRORS`."""
        if isinstance(error, AWAY):
            return LocalError(
                f"{self.url}: the catalogue does not respond ({type(error).__name__})",
                hint="check its address and that it runs, and repeat the command: nothing is lost",
            )
        if isinstance(error, DENIED):
            return ConfigError(
                f"{self.url}: the catalogue denies access ({type(error).__name__})",
                hint=f"check the credentials of the catalogue {self._name!r} in pyiceberg's configuration",
            )
        lines = str(error).splitlines()
        return LocalError(f"{self.url}: {self.shown(lines[0]) if lines else type(error).__name__}")

    def shown(self, text: str) -> str:
        """Return a text without the credentials of the catalogue."""
        for secret in self._secrets:
            for part in (secret, *secret.split(":")):
                text = text.replace(part, "…") if len(part) > 3 else text
        return _USER.sub("://…@", text)[:CHARACTERS_MAX]


def storage_options(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return deltalake's options for the store of a table, from the options of its catalogue and of the table."""
    found = {
        ours: str(properties[theirs]) for theirs, ours in reversed(STORAGE_OPTIONS.items()) if theirs in properties
    }
    if found.get("aws_endpoint_url", "").startswith("http://"):
        found["aws_allow_http"] = "true"
    return found
