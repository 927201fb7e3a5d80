"""cloud-init's own EC2 data source, told that this is EC2.

It recognises EC2 by the machine's BIOS, which a container does not have, and
would then ask the metadata service without a session token.
"""

from cloudinit import sources
from cloudinit.sources import DataSourceEc2 as ec2


class DataSourceOpenpcs(ec2.DataSourceEc2):
    dsname = "Ec2"

    def _get_cloud_name(self):
        return ec2.CloudNames.AWS


DATASOURCES = [
    (DataSourceOpenpcs, (sources.DEP_FILESYSTEM, sources.DEP_NETWORK)),
]


def get_datasource_list(depends):
    return sources.list_from_depends(depends, DATASOURCES)
