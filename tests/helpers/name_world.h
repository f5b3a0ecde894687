/* SPDX-License-Identifier: Apache-2.0 */
/* A host name that stands for an address of the test, without a look-up. */
#pragma once
#include <arpa/inet.h>

#include "io/net/net/name.h"

/* Tell that |addr|, a host name and port, stands for 127.0.0.1 and |port|, and that it was looked up an hour later than before, so
 * that no look-up is due. Return that time. */
static inline cgn_nsec name_stands_for(const char *addr, unsigned port)
{
	static cgn_nsec when;
	struct net_addr a;
	struct net_addresses out;
	struct sockaddr_in in = {.sin_family = AF_INET,
		.sin_port = htons((uint16_t)port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	const struct addrinfo ai = {.ai_family = AF_INET,
		.ai_addr = (struct sockaddr *)&in,
		.ai_addrlen = sizeof in};
	assert_true(cgn_ok(net_addr_parse(addr, &a, NULL)));
	struct net_name *n = net_name_get(&a);
	assert_non_null(n);
	when += when == 0 ? cgn_clock_now() + 3600 * CGN_SEC : 3600 * CGN_SEC;
	assert_true(net_name_told(n, when, 0, &ai, &out));
	net_name_free(&n);
	return when;
}
