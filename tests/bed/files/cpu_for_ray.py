"""vLLM's platform for the CPU, as far as Ray needs another one: a plugin of vLLM's, in the tests' image alone.

vLLM refuses Ray on CPUs, as that platform names nothing that Ray could share out. And it takes all ranks of one Ray for
ranks of one machine, which meet in shared memory.
"""

from vllm.platforms.cpu import CpuPlatform


class CpuForRay(CpuPlatform):
    ray_device_key = "GPU"

    @classmethod
    def get_device_communicator_cls(cls):
        return "cpu_for_ray.Apart"


def __getattr__(name):
    if name != "Apart":
        raise AttributeError(name)
    # Not before vLLM is whole: what it imports needs the platform.
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    class Apart(CpuCommunicator):
        def _all_group_ranks_share_shm_group_name(self):
            return False

    return Apart


def register():
    return "cpu_for_ray.CpuForRay"
