/* SPDX-License-Identifier: Apache-2.0 */
/* addr: "host:port", "[v6]:port", "unix:/path" as socket addresses, for whoever has sockets of its own. */
#pragma once
#include <netdb.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/core/err.h"

struct net_addr {
	bool local;     /* a Unix socket */
	char host[254]; /* "" = any */
	char port[6];
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
};
CGN_RC net_addr_parse(const char *text, struct net_addr *out, struct cgn_err *err);
void net_addr_unix(const struct net_addr *a, struct sockaddr_un *out);
/* Resolve; |numeric| never blocks. EAI_* code, as getaddrinfo. */
int net_addr_resolve(const struct net_addr *a, bool numeric, bool passive, struct addrinfo **out);
/* "127.0.0.1:4711", "[::1]:80", "unix"; always terminated. */
void net_addr_text(const struct sockaddr *sa, char *out, size_t cap);
