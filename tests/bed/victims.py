"""Targets of the faults, by the node's process ids."""

from .sparkd_node import SparkdNode


def main_of_engine(spark: SparkdNode) -> int:
    return spark.pid(r"vllm serve|/usr/local/bin/vllm")


def engine_core(spark: SparkdNode) -> int:
    return spark.pid(r"^VLLM::EngineCore")


def worker(spark: SparkdNode) -> int:
    return spark.pid(r"^VLLM::Worker")


def container_init(spark: SparkdNode) -> int:
    (name,) = spark.containers()
    return int(spark.node.run("docker", "inspect", "--format", "{{.State.Pid}}", name).stdout)


def sparkd(spark: SparkdNode) -> int:
    return spark.main_pid()


def dockerd(spark: SparkdNode) -> int:
    return int(spark.node.read("/run/docker.pid"))
