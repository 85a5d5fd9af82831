"""The services that tools expect: health and reflection."""

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tandemq.proxy.protocol import health_pb2 as health
from tandemq.proxy.protocol import reflection_v1_pb2 as v1
from tandemq.proxy.protocol import reflection_v1alpha_pb2 as v1alpha
from tandemq.proxy.service import NAME
from tests.unit.proxy.cluster import ProxyCluster

SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3
NOT_FOUND = 5


def test_health_is_that_of_the_proxy() -> None:
    cluster = ProxyCluster()
    client = cluster.client("")
    for service in ("", NAME):
        call = client.start_at("/grpc.health.v1.Health/Check", health.HealthCheckRequest(service=service))
        assert client.answer(call, health.HealthCheckResponse).status == SERVING
    call = client.start_at("/grpc.health.v1.Health/Check", health.HealthCheckRequest(service="other"))
    cluster.until(lambda: call.status is not None)
    assert call.status == NOT_FOUND and "other" in call.text


def test_watchers_are_notified_when_the_proxy_leaves() -> None:
    cluster = ProxyCluster()
    client = cluster.client("")
    calls = [
        client.start_at("/grpc.health.v1.Health/Watch", health.HealthCheckRequest(service=service))
        for service in ("", "other", NAME)
    ]
    cluster.run(50)
    client.cancel(calls[2])
    cluster.run(50)
    cluster.proxy.leave()
    cluster.run(50)
    said = [[health.HealthCheckResponse.FromString(each).status for each in call.messages] for call in calls]
    assert said == [[SERVING, NOT_SERVING], [UNKNOWN], [SERVING]]
    assert calls[0].status == 0


def test_a_proxy_with_a_watcher_of_an_unknown_service_can_leave() -> None:
    cluster = ProxyCluster()
    client = cluster.client("")
    client.start_at("/grpc.health.v1.Health/Watch", health.HealthCheckRequest(service="other"))
    cluster.run(50)
    cluster.proxy.leave()
    cluster.until(lambda: cluster.proxy.node.is_left, 1_000)


def test_reflection_describes_all_services() -> None:
    cluster = ProxyCluster()
    client = cluster.client("")
    for module in (v1, v1alpha):
        package = module.DESCRIPTOR.package
        asked = [
            module.ServerReflectionRequest(list_services=""),
            module.ServerReflectionRequest(file_containing_symbol=NAME),
            module.ServerReflectionRequest(file_containing_symbol=f"{NAME}.SendMessage"),
            module.ServerReflectionRequest(file_by_filename="google/protobuf/duration.proto"),
            module.ServerReflectionRequest(file_by_filename="absent.proto"),
            module.ServerReflectionRequest(file_containing_symbol="absent"),
            module.ServerReflectionRequest(all_extension_numbers_of_type=NAME),
        ]
        call = client.start_at(f"/{package}.ServerReflection/ServerReflectionInfo", *asked)
        cluster.until(lambda call=call: call.status is not None)  # type: ignore[misc]
        listed, service, method, file, *absent = [
            module.ServerReflectionResponse.FromString(each) for each in call.messages
        ]
        names = [each.name for each in listed.list_services_response.service]
        assert {NAME, "grpc.health.v1.Health", f"{package}.ServerReflection"} <= set(names)
        files = [
            FileDescriptorProto.FromString(each) for each in service.file_descriptor_response.file_descriptor_proto
        ]
        assert any(f"{each.package}.{name.name}" == NAME for each in files for name in each.service)
        assert {"google/protobuf/duration.proto", "google/protobuf/timestamp.proto"} <= {each.name for each in files}
        assert method.file_descriptor_response == service.file_descriptor_response
        assert len(file.file_descriptor_response.file_descriptor_proto) == 1
        assert [each.error_response.error_code for each in absent] == [NOT_FOUND] * 3
        assert call.status == 0 and listed.original_request == asked[0]
