{% set address = config_get("user.openpcs.address", "") %}{% set gateway = config_get("user.openpcs.gateway", "") %}[Match]
Name=eth0

[Link]
RequiredForOnline=no

[Network]
LinkLocalAddressing=no
IPv6AcceptRA=no
{% if address != "" %}Address={{ address }}
{% if gateway != "" %}Gateway={{ gateway }}
{% endif %}{% else %}DHCP=ipv4
{% endif %}
