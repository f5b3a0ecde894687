/* SPDX-License-Identifier: Apache-2.0 */
/* name: the address for which a host name and a port stand: one for the whole process at a time, so that what checks a peer
 * and what asks it reach the same one. Any thread. */
#pragma once
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>

#include "base/core/err.h"
#include "io/net/net/addr.h"
#include "io/os/loop/loop.h"

#define NET_NAME_ADDRESSES 16 /* Further addresses of a name are not used. */

union net_sockaddr {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};
socklen_t net_sockaddr_len(const union net_sockaddr *a);

/* Addresses in the order in which they are tried. */
struct net_addresses {
	union net_sockaddr at[NET_NAME_ADDRESSES];
	size_t n;
};
/* Copy the addresses of IPv4 and IPv6 in |list|. */
void net_addresses_take(struct net_addresses *to, const struct addrinfo *list);

/* A name is looked up again at most this long after the last time. Set it before the first connection; default: 15 s. */
void net_name_set_interval(cgn_nsec interval);
cgn_nsec net_name_interval(void);

struct net_name;
/* Take a reference to the name and port of |a|. All callers get the same object. */
struct net_name *net_name_get(const struct net_addr *a);
void net_name_free(struct net_name **take); /* NULL-safe. The address stays known for a while. */

/* Copy the known addresses, the chosen one first. False: the name must be looked up first, because it never was, or not for
 * the interval, or because a peer at its addresses was lost. */
bool net_name_addresses(struct net_name *n, cgn_nsec now, struct net_addresses *out);
/* Take the result of a look-up that began at |began|, an EAI_* code and a list, and set |*out| to the addresses to try. After
 * a failure the known addresses stay. False: there are none. */
bool net_name_told(struct net_name *n, cgn_nsec began, int rc, const struct addrinfo *list,
	struct net_addresses *out);
/* A connection to |a| stands, after one to |first| was tried: |a| is chosen if |first| failed and was the chosen one. */
void net_name_works(struct net_name *n, const union net_sockaddr *first, const union net_sockaddr *a);
/* No address of the name takes a connection, or one broke: the next call of net_name_addresses wants a new look-up, at most
 * one a second. */
void net_name_fails(struct net_name *n);
/* Choose the next address of the name if |peer|, the text of net_addr_text, is the chosen one. */
void net_name_shun(struct net_name *n, const char *peer);

/* Look the name up on the pool of |l| if it is due, with few look-ups at a time in the process. */
void net_name_refresh(struct net_name *n, struct cgn_loop *l);
/* Is |peer|, the text of net_addr_text, the chosen address? |version| is the caller's; 0 at first. */
bool net_name_is(struct net_name *n, const char *peer, uint64_t *version);
