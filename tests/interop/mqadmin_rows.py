"""Every command of mqadmin 4.9.8 and 5.3.3: arguments that make it do its work, and what it prints against TandemQ.

`CHAINS` are run one after the other, beside other chains; `LAST` after all of them, because they change what others
need or print. Arguments and patterns may contain, in braces: a (address of the broker), n (of the name server), t
(topic with six messages in two queues), g (group with a consumer online), c (its client id), i (offset id of a
message), k (unique key of that message), d (a directory with topics.json and groups.json), v (digit that differs by
version).

docs/reference/mqadmin.md lists each command with the same verdict (`tests/test_docs.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["works", "refused", "local"]
OLD, NEW = "4.9.8", "5.3.3"
BOTH = (OLD, NEW)


@dataclass(frozen=True, slots=True)
class Row:
    """One run of a command."""

    command: str
    arguments: str
    shows: tuple[str, ...]
    """Regular expressions; each is found in what the command prints."""
    verdict: Verdict = "works"
    versions: tuple[str, ...] = BOTH
    fails: bool = False
    """A working command that prints an exception too: `shows` the reason in it, if the input must be refused."""


def _refused(command: str, arguments: str, request: str, way_out: str, versions: tuple[str, ...] = (NEW,)) -> Row:
    """A command whose request is refused: its name and what to do instead are printed."""
    return Row(command, arguments, (rf"CODE: 3 .*\({request}\)", way_out), "refused", versions)


_NO_CONTROLLER = "tandemq ha status"
_NO_ACCOUNTS = "aclEnable is false"
_MODE_SET = "set consume mode to {a} success"
_QUEUES = (r"broker-a\s+0\s+0\s+\d", r"broker-a\s+1\s+0\s+\d")
_CREATED = "create topic to {a} success"
_STORED = (r"SEND_OK",)
_GROUP_QUEUES = (r"{t}\s+broker-a\s+0\s+\d+\s+\d+", r"{t}\s+broker-a\s+1\s+\d+\s+\d+")

CHAINS: tuple[tuple[Row, ...], ...] = (
    (
        Row("updateTopic", "-c DefaultCluster -t {t}x -r 2 -w 2", (_CREATED,)),
        Row("updateTopic", "-b {a} -t {t}o -r 2 -w 2 -o true", (_CREATED, r"orderConf=\[broker-a:2\]"), fails=True),
        Row("updateTopic", "-b {a} -t {t}u -r 2 -w 2 -u true -s true", (_CREATED, "topicSysFlag=3")),
        Row("updateTopic", "-b {a} -t bad,name -r 2 -w 2", ("'bad,name' contains illegal characters",), fails=True),
        Row("updateTopic", "-b {a} -t {t}m -a +message.type=DELAY", (_CREATED,), versions=(NEW,)),
        Row(
            "updateTopic",
            "-b {a} -t {t}n -a +message.type=MIXED",
            ("CODE: 29", "MIXED message type is not supported"),
            versions=(NEW,),
            fails=True,
        ),
        Row(
            "updateTopic",
            "-b {a} -t {t}q -a +cleanup.policy=COMPACTION",
            ("compaction is not supported: messages are deleted by age",),
            versions=(NEW,),
            fails=True,
        ),
        Row("updateTopicPerm", "-b {a} -t {t}x -p 4", ("update topic perm from 6 to 4 in {a} success",)),
        Row("updateTopicPerm", "-c DefaultCluster -t {t}x -p 6", ("update topic perm from 4 to 6 in {a} success",)),
        Row(
            "deleteTopic",
            "-c DefaultCluster -t {t}x",
            (r"from cluster \[DefaultCluster\] success", "from NameServer success"),
        ),
    ),
    (
        Row("updateStaticTopic", "-t {t}st -qn 4 -b broker-a", (r"new mapping data is written",), versions=(NEW,)),
        Row(
            "updateStaticTopic",
            "-t {t}st -qn 2 -b broker-a",
            ("Cannot decrease the queue num",),
            versions=(NEW,),
            fails=True,
        ),
        Row("topicStatus", "-t {t}st", (r"__syslo__global__\s+3\s+0\s+0",), versions=(NEW,)),
        Row("remappingStaticTopic", "-t {t}st -b broker-a", (r"is written to file .*\.after",), versions=(NEW,)),
    ),
    (
        Row("updateTopicList", "-b {a} -f {d}/topics.json", ("topic config to {a} success",), versions=(NEW,)),
        Row("updateSubGroupList", "-b {a} -f {d}/groups.json", ("group config to {a} success",), versions=(NEW,)),
        Row("setConsumeMode", "-b {a} -t {t} -g {g} -m POP -q 2", (_MODE_SET,), versions=(NEW,)),
        Row("setConsumeMode", "-b {a} -t {t} -g {g} -m PULL -q 0", (_MODE_SET,), versions=(NEW,)),
    ),
    (
        Row("topicRoute", "-t {t}", ('"brokerName":"broker-a"', r'"readQueueNums":\s*2')),
        Row("topicRoute", "-t NoSuch", ("CODE: 17  DESC: No topic route info .* NoSuch",), fails=True),
        Row("topicStatus", "-t {t}", _QUEUES),
        Row("topicClusterList", "-t {t}", ("DefaultCluster",)),
        Row("topicList", "", ("(?m)^{t}$", "(?m)^TBW102$")),
        Row("topicList", "-c", (r"DefaultCluster\s+{t}\s+{g}",)),
        Row("allocateMQ", "-t {t} -i 10.0.0.1,10.0.0.2", (r'"10.0.0.1":\[\{{"brokerName":"broker-a"',)),
        Row("statsAll", "-t {t}", (r"{t}\s+{g}\s+\d+",)),
    ),
    (
        Row("brokerStatus", "-b {a}", (r"commitLogMaxOffset\s+: \d+", "brokerVersionDesc")),
        Row("brokerStatus", "-c DefaultCluster", (r"{a}\s+brokerVersionDesc",)),
        Row("brokerConsumeStats", "-b {a}", (r"{t}\s+{g}\s+broker-a\s+0\s+3", r"{t}\s+{g}\s+broker-a\s+1\s+3")),
        Row("clusterList", "", (r"DefaultCluster\s+broker-a\s+0\s+{a}",)),
        Row("clusterList", "-m", (r"broker-a\s+\d+\s+\d+\s+\d+\s+\d+",)),
        Row("getBrokerConfig", "-b {a}", (r"brokerName\s+=  broker-a",)),
        Row("updateBrokerConfig", "-b {a} -k maxMsgsNumBatch -v 63", ("update broker config success, {a}",)),
        Row("updateBrokerConfig", "-c DefaultCluster -k maxMsgsNumBatch -v 64", ("update broker config success, {a}",)),
        Row(
            "updateBrokerConfig",
            "-b {a} -k fileReservedTime -v 1",
            ("fileReservedTime: .*configBlackList",),
            fails=True,
        ),
        Row("updateBrokerConfig", "-b {a} -k noSuchKey -v 1", ("noSuchKey: unknown setting",), fails=True),
        Row("haStatus", "-b {a}", (r"#MasterAddr\s+{a}", r"#SlaveNum\s+0"), versions=(NEW,)),
        Row("getBrokerEpoch", "-c DefaultCluster", (r"EpochEntry\{{epoch=1, startOffset=0",), versions=(NEW,)),
    ),
    (
        Row("queryMsgById", "-i {i}", ("Topic: +{t}", "key0 keyall"), versions=(OLD,)),
        Row("queryMsgById", "-t {t} -i {i}", ("Topic: +{t}", "key0 keyall"), versions=(NEW,)),
        Row("queryMsgById", "-i {i} -g {g} -d {c}", ("consumeResult=CR_SUCCESS",), versions=(OLD,)),
        Row("queryMsgById", "-t {t} -i {i} -g {g} -d {c}", ("consumeResult=CR_SUCCESS",), versions=(NEW,)),
        Row("queryMsgByKey", "-t {t} -k key1", (r"\w{{32}}\s+1\s+0",)),
        Row("queryMsgByUniqueKey", "-t {t} -i {k}", ("Topic: +{t}", "key0 keyall")),
        Row("queryMsgByOffset", "-t {t} -b broker-a -i 0 -o 0", ("Topic: +{t}", "{i}")),
        Row("queryCq", "-t {t} -q 0 -i 0 -c 3 -b {a}", (r"physicSize=\d+, tagsCode=84",)),
        Row("queryCq", "-t {t} -q 0 -i 0 -g {g}", ('"subString": ?"\\*"', r"physicSize=\d+, tagsCode=84")),
        Row(
            "queryMsgTraceById",
            "-i {k}",
            (r"CODE: 17  DESC: .*RMQ_SYS_TRACE_TOPIC",),
            fails=True,
        ),
    ),
    (
        Row("printMsg", "-t {t} -d true", ("minOffset=0, maxOffset=", "MSGID: {k}")),
        Row("printMsgByQueue", "-t {t} -a broker-a -i 0 -p true -d true -f true", ("MSGID: {k}", r"Tag: T\s+Count: 3")),
        Row("consumeMessage", "-t {t} -b broker-a -i 0 -o 0 -c 2", ("Consume ok", "MSGID: {k}")),
    ),
    (
        Row("sendMessage", "-t {t}s -p hello -c tagA -k kk", (r"broker-a\s+\d+\s+SEND_OK",)),
        Row("sendMsgStatus", "-b broker-a -c 2", _STORED),
        Row("checkMsgSendRT", "-t {t}s -a 3", (r"broker-a\s+0\s+true", "Avg RT:")),
    ),
    (
        Row("producerConnection", "-g CLIENT_INNER_PRODUCER -t {t}", (r"{c}\s+127.0.0.1:\d+\s+JAVA",)),
        Row("producer", "-b {a}", (r"CLIENT_INNER_PRODUCER.*clientId={c}",)),
        Row("consumerConnection", "-g {g}", (r"{c}\s+127.0.0.1:\d+\s+JAVA", r"{t}\s+\*")),
        # Groups without members are printed with the exception by which mqadmin notices.
        Row("consumerProgress", "", (r"{g}\s+1\s+V\d_\d_\d\s+PUSH\s+CLUSTERING",), fails=True),
        Row("consumerProgress", "-g {g}", (*_GROUP_QUEUES, "Diff Total: 0")),
        Row("consumerProgress", "-g {g} -s true", (r"{t}\s+broker-a\s+0\s+\d+\s+\d+\s+127.0.0.1\s+0",)),
        Row("consumerStatus", "-g {g}", (r"1\s+{c}\s+V\d", "Rebalance OK")),
        # The stacks of the client's threads name exceptions.
        Row(
            "consumerStatus",
            "-g {g} -i {c} -s",
            (r"PROP_CONSUME_TYPE\s+: CONSUME_PASSIVELY", "ConsumeMessageThread"),
            fails=True,
        ),
    ),
    (
        Row("updateKvConfig", "-s spaceA{v} -k k -v v", ("create or update kv config to namespace success",)),
        Row("deleteKvConfig", "-s spaceA{v} -k k", ("delete kv config from namespace success",)),
        Row("updateOrderConf", "-t {t} -m put -v broker-a:2", (r"update orderConf success. topic=\[{t}\]",)),
        Row("updateOrderConf", "-t {t} -m get", (r"orderConf=\[broker-a:2\]",)),
        Row("updateOrderConf", "-t {t} -m delete", (r"delete orderConf success. topic=\[{t}\]",)),
        Row("getNamesrvConfig", "", (r"orderMessageEnable\s+=  false",)),
        Row("updateNamesrvConfig", "-k orderMessageEnable -v false", (r"update name server config success!\[{n}\]",)),
    ),
    (
        Row("cleanExpiredCQ", "-b {a}", ("success",)),
        Row("deleteExpiredCommitLog", "-b {a}", ("success",)),
        Row("cleanUnusedTopic", "-b {a}", ("success",)),
    ),
    (
        Row("exportMetadata", "-c DefaultCluster -f {d}", ("export {d}/metadata.json success",)),
        Row("exportConfigs", "-c DefaultCluster -f {d}", ("export {d}/configs.json success",)),
        Row("exportMetrics", "-c DefaultCluster -f {d}", ("export {d}/metrics.json success",)),
    ),
    (
        _refused("addBroker", "-c {a} -b broker.conf", "ADD_BROKER", "tandemq broker -c FILE"),
        _refused("removeBroker", "-c {a} -b DefaultCluster:broker-a:0", "REMOVE_BROKER", "tandemq broker -c FILE"),
        _refused("resetMasterFlushOffset", "-b {a} -o 0", "RESET_MASTER_FLUSH_OFFSET", "tandemq ha status"),
        _refused("exportPopRecord", "-b {a} -d true", "POP_ROLLBACK", "no KV store"),
    ),
    (
        _refused("getSyncStateSet", "-a {n} -b broker-a", "CONTROLLER_GET_METADATA_INFO", _NO_CONTROLLER),
        _refused("getControllerMetaData", "-a {n}", "CONTROLLER_GET_METADATA_INFO", _NO_CONTROLLER),
        _refused("getControllerConfig", "-a {n}", "GET_CONTROLLER_CONFIG", _NO_CONTROLLER),
        _refused("updateControllerConfig", "-a {n} -k a -v b", "UPDATE_CONTROLLER_CONFIG", _NO_CONTROLLER),
        _refused(
            "electMaster", "-a {n} -b 1 -bn broker-a -c DefaultCluster", "CONTROLLER_GET_METADATA_INFO", _NO_CONTROLLER
        ),
        _refused(
            "cleanBrokerMetadata",
            "-a {n} -b 1 -bn broker-a -c DefaultCluster",
            "CONTROLLER_GET_METADATA_INFO",
            _NO_CONTROLLER,
        ),
    ),
    (
        _refused("getColdDataFlowCtrInfo", "-b {a}", "GET_COLD_DATA_FLOW_CTR_INFO", "slaveReadEnable"),
        _refused(
            "updateColdDataFlowCtrGroupConfig",
            "-b {a} -g {g} -v 100",
            "UPDATE_COLD_DATA_FLOW_CTR_CONFIG",
            "slaveReadEnable",
        ),
        _refused(
            "removeColdDataFlowCtrGroupConfig", "-b {a} -g {g}", "REMOVE_COLD_DATA_FLOW_CTR_CONFIG", "slaveReadEnable"
        ),
        _refused("setCommitLogReadAheadMode", "-b {a} -m 1", "SET_COMMITLOG_READ_MODE", "the kernel decides"),
        _refused("rocksDBConfigToJson", "-c DefaultCluster", "EXPORT_ROCKSDB_CONFIG_TO_JSON", "JSON below config/"),
        _refused(
            "checkRocksdbCqWriteProgress", "-c DefaultCluster -t {t}", "CHECK_ROCKSDB_CQ_WRITE_PROGRESS", "log verify"
        ),
        Row("exportMetadataInRocksDB", "-p {d}/rocks -t topics", ("RocksDB path is invalid",), "local", (NEW,)),
        Row("dumpCompactionLog", "-f {d}/topics.json", (), "local", (NEW,)),
    ),
    (
        Row("createUser", "-b {a} -u {t}u -p p -t Normal", ("create user to {a} success",), versions=(NEW,)),
        Row("updateUser", "-b {a} -u {t}u -p q", ("update user to {a} success",), versions=(NEW,)),
        Row("getUser", "-b {a} -u {t}u", (r"{t}u\s+q\s+Normal\s+enable",), versions=(NEW,)),
        Row("listUser", "-b {a}", (r"{t}u\s+q\s+Normal\s+enable",), versions=(NEW,)),
        Row(
            "createAcl",
            "-b {a} -s User:{t}u -r Topic:* -a PUB -d ALLOW",
            ("create acl to {a} success",),
            versions=(NEW,),
        ),
        Row(
            "updateAcl",
            "-b {a} -s User:{t}u -r Topic:* -a SUB -d DENY",
            ("update acl to {a} success",),
            versions=(NEW,),
        ),
        Row("getAcl", "-b {a} -s User:{t}u", (r"User:{t}u\s+Custom\s+Topic:\*\s+\[Sub\].*Deny",), versions=(NEW,)),
        Row("listAcl", "-b {a}", (r"User:{t}u\s+Custom\s+Topic:\*",), versions=(NEW,)),
        Row("copyAcl", "-f {a} -t {a} -s User:{t}u", ("success",), versions=(NEW,)),
        Row("copyUser", "-f {a} -t {a} -u {t}u", ("success",), versions=(NEW,)),
        Row("deleteAcl", "-b {a} -s User:{t}u -r Topic:*", ("delete acl to {a} success",), versions=(NEW,)),
        Row("deleteUser", "-b {a} -u {t}u", ("delete user to {a} success",), versions=(NEW,)),
    ),
    (
        # Against a broker with `aclEnable` they are in test_accounts.py.
        Row("updateAclConfig", "-b {a} -a R -s 1234567809123", ("209", _NO_ACCOUNTS), versions=(OLD,), fails=True),
        Row("deleteAclConfig", "-b {a} -a R", ("210", _NO_ACCOUNTS), versions=(OLD,), fails=True),
        Row("clusterAclConfigVersion", "-b {a}", ("config/accessControl.json",), versions=(OLD,)),
        Row("updateGlobalWhiteAddr", "-b {a} -g 10.0.0.1", ("211", _NO_ACCOUNTS), versions=(OLD,), fails=True),
    ),
)

LAST = (
    Row("updateSubGroup", "-b {a} -g made{v} -r 3", ("create subscription group to {a} success", "retryMaxTimes=3")),
    Row("updateSubGroup", "-c DefaultCluster -g made{v} -s true", ("create subscription group to {a} success",)),
    Row("getConsumerConfig", "-g made{v}", (r"retryMaxTimes\s+=  16",)),
    Row("cloneGroupOffset", "-s {g} -d made{v} -t {t} -o true", (r"clone group offset success",)),
    Row("resetOffsetByTime", "-g made{v} -t {t} -s 0 -f true", (r"broker-a\s+0\s+\d+\s+\d+\s+0\s+0",)),
    Row(
        "resetOffsetByTime",
        "-g made{v} -t {t} -s 0 -q 1 -o 2 -b {a}",
        ("reset consumer offset to 2",),
        versions=(NEW,),
    ),
    Row("skipAccumulatedMessage", "-g made{v} -t {t}", (r"broker-a\s+1\s+(\d+)\s+\d+\s+\1\s+\1",)),
    Row(
        "deleteSubGroup",
        "-c DefaultCluster -g made{v} -r true",
        (r"delete subscription group \[made{v}\] .*success",),
    ),
    Row("resetOffsetByTime", "-g {g} -t {t} -s now", (r"broker-a\s+0\s+\d+", r"broker-a\s+1\s+\d+")),
    Row("wipeWritePerm", "-b broker-a", (r"wipe write perm of broker\[broker-a\] in name server\[{n}\] OK, [1-9]",)),
    Row("addWritePerm", "-b broker-a", (r"add write perm of broker\[broker-a\] in name server\[{n}\] OK, [1-9]",)),
)

ENDLESS = {"clusterRT": r"DefaultCluster\s+broker-a", "startMonitoring": ""}
"""Commands that run until they are killed, and what they print; in both versions."""


def rows(version: str) -> list[Row]:
    """All rows of a version, in the order of the tables."""
    return [row for row in (*(row for chain in CHAINS for row in chain), *LAST) if version in row.versions]


def verdicts() -> dict[str, tuple[tuple[str, ...], str]]:
    """Versions and verdict of each command."""
    found: dict[str, tuple[tuple[str, ...], str]] = dict.fromkeys(ENDLESS, (BOTH, "works"))
    for version in BOTH:
        for row in rows(version):
            known = found.get(row.command, ((), row.verdict))[0]
            found[row.command] = ((*known, version) if version not in known else known, row.verdict)
    return found
