{{ config_get("user.openpcs.role", "node") }}
