{% set address = config_get("user.openpcs.address", "") %}{% set gateway = config_get("user.openpcs.gateway", "") %}{% if address != "" %}link set eth0 up
addr replace {{ address }} dev eth0
{% if gateway != "" %}route replace default via {{ gateway }}
{% endif %}{% endif %}
