"""The services that tools expect of any gRPC server: its health, and its methods (reflection).

Source: gRPC Health Checking Protocol, Server Reflection Protocol.
"""

from collections.abc import Iterable
from types import ModuleType

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError

from tandemq.boundary import Now
from tandemq.grpc.server import Call, GrpcStatus, Method
from tandemq.proxy.protocol import health_pb2, messaging_pb2, reflection_v1_pb2, reflection_v1alpha_pb2
from tandemq.proxy.service import NAME

HEALTH = "grpc.health.v1.Health"
_Serving = health_pb2.HealthCheckResponse.ServingStatus
NOT_FOUND = 5
"""Error code of a reflection response."""


class Health:
    """Whether the proxy serves."""

    def __init__(self) -> None:
        """It does."""
        self._is_serving = True
        self._watchers: dict[Call, bool] = {}
        """Calls, and whether they watch a service that there is."""
        self.methods = {
            f"/{HEALTH}/Check": Method(self._check),
            f"/{HEALTH}/Watch": Method(self._watch),
        }

    def leave(self) -> None:
        """Tell all watchers that the proxy serves no more."""
        self._is_serving = False
        for call, is_known in list(self._watchers.items()):
            if is_known:
                call.send(self._response())
            call.end()
        self._watchers.clear()

    def _response(self) -> bytes:
        status = _Serving.SERVING if self._is_serving else _Serving.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=status).SerializeToString()

    def _check(self, call: Call, message: bytes, _now: Now) -> None:
        service = _service_of(call, message)
        if service in ("", NAME):
            call.respond(self._response())
        elif service is not None:
            call.end(GrpcStatus.NOT_FOUND, f"there is no service {service[:200]}")

    def _watch(self, call: Call, message: bytes, _now: Now) -> None:
        service = _service_of(call, message)
        if service is None:
            return
        is_known = self._watchers[call] = service in ("", NAME)
        call.on_cancel = lambda _now: self._forget(call)
        unknown = health_pb2.HealthCheckResponse(status=_Serving.SERVICE_UNKNOWN)
        call.send(self._response() if is_known else unknown.SerializeToString())

    def _forget(self, call: Call) -> None:
        self._watchers.pop(call, False)


def _service_of(call: Call, message: bytes) -> str | None:
    try:
        return health_pb2.HealthCheckRequest.FromString(message).service
    except DecodeError as error:
        call.end(GrpcStatus.INTERNAL, f"the message cannot be decoded: {error}")
        return None


class Reflection:
    """The descriptors of the services."""

    def __init__(self) -> None:
        """Of all services that the proxy has."""
        modules = (messaging_pb2, health_pb2, reflection_v1_pb2, reflection_v1alpha_pb2)
        self._files = _with_imports(module.DESCRIPTOR for module in modules)
        self._symbols = {name: file for file in self._files.values() for name in _symbols_of(file)}
        self._services = sorted(
            service.full_name for file in self._files.values() for service in file.services_by_name.values()
        )
        self.methods = {
            f"/{module.DESCRIPTOR.package}.ServerReflection/ServerReflectionInfo": self._method(module)
            for module in (reflection_v1_pb2, reflection_v1alpha_pb2)
        }

    def _method(self, module: ModuleType) -> Method:
        def answer(call: Call, message: bytes, _now: Now) -> None:
            try:
                query = module.ServerReflectionRequest.FromString(message)
            except DecodeError as error:
                call.end(GrpcStatus.INTERNAL, f"the message cannot be decoded: {error}")
                return
            response = module.ServerReflectionResponse(valid_host=query.host, original_request=query)
            kind = query.WhichOneof("message_request")
            file = None
            if kind == "list_services":
                for name in self._services:
                    response.list_services_response.service.add().name = name
            elif kind == "file_by_filename":
                file = self._files.get(query.file_by_filename)
            elif kind == "file_containing_symbol":
                file = self._symbols.get(query.file_containing_symbol)
            if file is not None:
                files = _with_imports([file]).values()
                response.file_descriptor_response.file_descriptor_proto.extend(each.serialized_pb for each in files)
            elif kind != "list_services":
                response.error_response.error_code = NOT_FOUND
                response.error_response.error_message = "there is no such file, symbol or extension"
            call.send(response.SerializeToString())

        def opened(call: Call, _now: Now) -> None:
            call.on_end = lambda _now: call.end()

        return Method(answer, is_streamed=True, opened=opened)


def _with_imports(files: Iterable[FileDescriptor]) -> dict[str, FileDescriptor]:
    """Return files and all that they import, by name; a file comes before what it imports."""
    found: dict[str, FileDescriptor] = {}
    waiting = list(files)
    while waiting:
        file = waiting.pop(0)
        if file.name not in found:
            found[file.name] = file
            waiting += file.dependencies
    return found


def _symbols_of(file: FileDescriptor) -> Iterable[str]:
    for service in file.services_by_name.values():
        yield service.full_name
        yield from (method.full_name for method in service.methods)
    yield from (message.full_name for message in file.message_types_by_name.values())
    yield from (enum.full_name for enum in file.enum_types_by_name.values())
