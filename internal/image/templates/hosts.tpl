{% set address = config_get("user.openpcs.address", "") %}{% set hostname = config_get("user.openpcs.hostname", container.name) %}127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
{% if address != "" %}{{ address|split:"/"|first }}{% else %}127.0.1.1{% endif %} {{ hostname }}{% if "." in hostname %} {{ hostname|split:"."|first }}{% endif %}
