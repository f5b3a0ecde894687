/* SPDX-License-Identifier: Apache-2.0 */
/* addr: "host:port", "[v6]:port" and "unix:/path" as socket addresses, for rooms with sockets of their
 * own. */
#pragma once
#include <netdb.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/core/err.h"

struct net_addr {
	bool local;     /* The address is a Unix socket. */
	char host[254]; /* "": any address. */
	char port[6];
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
};
CGN_RC net_addr_parse(const char *text, struct net_addr *out, struct cgn_err *err);
void net_addr_unix(const struct net_addr *a, struct sockaddr_un *out);
/* Resolve the address; with |numeric| the call never blocks. Returns an EAI_* code, as getaddrinfo does. */
int net_addr_resolve(const struct net_addr *a, bool numeric, bool passive, struct addrinfo **out);
/* Write "127.0.0.1:4711", "[::1]:80" or "unix" into |out|, always terminated. */
void net_addr_text(const struct sockaddr *sa, char *out, size_t cap);
