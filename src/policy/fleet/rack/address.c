/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include <arpa/inet.h>

#include "policy/fleet/rack/rack.h"

static bool is_like_v4(const char *z)
{
	unsigned dots = 0;
	for (; *z != '\0'; z++) {
		if (*z != '.' && (*z < '0' || *z > '9'))
			return false;
		dots += *z == '.';
	}
	return dots == 3;
}

bool rack_is_ip(const char *address)
{
	return strchr(address, ':') != NULL || is_like_v4(address);
}

bool rack_ip_text(const char *address, char out[RACK_ADDRESS_MAX])
{
	struct in6_addr ip; /* Room for both kinds. */
	int family = strchr(address, ':') != NULL ? AF_INET6 : AF_INET;
	_Static_assert(RACK_ADDRESS_MAX >= INET6_ADDRSTRLEN, "the longest text of an address");
	return inet_pton(family, address, &ip) == 1 && inet_ntop(family, &ip, out, RACK_ADDRESS_MAX) != NULL;
}
