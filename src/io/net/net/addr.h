/* SPDX-License-Identifier: Apache-2.0 */
/* addr: "host:port", "[v6]:port" and "unix:/path" as socket addresses, for rooms with sockets of their
 * own. */
#pragma once
#include <netdb.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/core/err.h"
#include "base/core/str.h"

struct net_addr {
	bool local;     /* The address is a Unix socket. */
	char host[254]; /* "": any address. */
	char port[6];
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
};
CGN_RC net_addr_parse(const char *text, struct net_addr *out, struct cgn_err *err);
/* Is |host| an address of IPv4 or IPv6, without brackets, and no name? */
bool net_host_is_ip(const char *host);
void net_addr_unix(const struct net_addr *a, struct sockaddr_un *out);
/* Resolve the address; with |numeric| the call never blocks. Returns an EAI_* code, as getaddrinfo does. */
int net_addr_resolve(const struct net_addr *a, bool numeric, bool passive, struct addrinfo **out);
/* Write "127.0.0.1:4711", "[::1]:80" or "unix" into |out|, always terminated. */
void net_addr_text(const struct sockaddr *sa, char *out, size_t cap);

#define NET_ADDR_GROUP_MAX 56 /* "2001:db8:1:2::/64" */
/* Write the address of |peer|, "host:port", as limits count it: an IPv4 address, the /64 of an IPv6 address, or "unix". A
 * household or a virtual machine has a whole /64, so counting single addresses would limit nothing. */
void net_addr_group(struct cgn_str peer, char out[NET_ADDR_GROUP_MAX]);
