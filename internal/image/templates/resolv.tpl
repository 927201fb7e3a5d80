{% set gateway = config_get("user.openpcs.gateway", "") %}{% set domain = config_get("user.openpcs.domain", "") %}{% if gateway != "" %}nameserver {{ gateway }}
{% endif %}{% if domain != "" %}search {{ domain }}
{% endif %}
