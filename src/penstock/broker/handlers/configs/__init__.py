"""Settings of topics, groups and the broker: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from typing import Final

from penstock.broker.handlers.base import Api
from penstock.broker.handlers.configs.altering import alter_configs, incremental_alter_configs
from penstock.broker.handlers.configs.describing import describe_configs
from penstock.wire.protocol import ApiKey

__all__ = ["APIS"]

APIS: Final = (
    Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, describe_configs),
    Api(ApiKey.ALTER_CONFIGS, 0, 2, alter_configs),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, incremental_alter_configs),
)
