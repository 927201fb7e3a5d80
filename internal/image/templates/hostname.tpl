{{ config_get("user.openpcs.hostname", container.name) }}
