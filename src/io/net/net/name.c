/* SPDX-License-Identifier: Apache-2.0 */
#include "io/net/net/name.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/core/list.h"
#include "base/log/log.h"
#include "base/unlikely/unlikely.h"

#define NAME_TAG      0x0e7a3e01U
#define NAME_INTERVAL (15 * CGN_SEC)
#define NAME_RETRY    CGN_SEC /* Between two look-ups of a name whose addresses take no connection. */
/* Look-ups in the background share the pool with the disks: a name server that does not answer may hold so many threads. */
#define NAME_LOOKUPS 1
#define NAME_KEPT    256 /* Unused names stay known, so that the next user gets the address of the last one. */

struct net_name {
	uint32_t tag;
	struct cgn_link link; /* Member of |names|; those that were used last stand last. */
	size_t refs;
	struct net_addr addr;
	struct net_addresses all;
	size_t chosen; /* Index in |all| */
	bool failing;  /* No address took a connection since the last look-up, or one broke. */
	bool unknown;  /* The last look-up failed, and the log was told. */
	/* Written with the lock held. */
	_Atomic uint64_t version;   /* Grows when another address is chosen. */
	_Atomic cgn_nsec looked_at; /* When the last look-up began; 0: never. */
	atomic_bool looking;        /* A look-up in the background runs. */
};

struct name_lookup {
	struct net_name *n;
	struct addrinfo *list;
	cgn_nsec began;
	int rc;
};

/* Guards the list and what it has, apart from the atomics. */
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cgn_link names = {&names, &names};
static size_t names_unused;
static _Atomic cgn_nsec names_interval = NAME_INTERVAL;
static atomic_uint names_lookups;

/* ---- addresses ---- */

socklen_t net_sockaddr_len(const union net_sockaddr *a)
{
	return a->any.sa_family == AF_INET6 ? sizeof a->v6 : sizeof a->v4;
}

void net_addresses_take(struct net_addresses *to, const struct addrinfo *list)
{
	to->n = 0;
	for (const struct addrinfo *ai = list; ai != NULL && to->n < NET_NAME_ADDRESSES; ai = ai->ai_next) {
		union net_sockaddr *a = &to->at[to->n];
		if (ai->ai_family != AF_INET && ai->ai_family != AF_INET6)
			continue;
		memset(a, 0, sizeof *a);
		memcpy(a, ai->ai_addr, ai->ai_addrlen < sizeof *a ? ai->ai_addrlen : sizeof *a);
		to->n++;
	}
}

static bool sockaddr_equal(const union net_sockaddr *a, const union net_sockaddr *b)
{
	if (a->any.sa_family != b->any.sa_family)
		return false;
	if (a->any.sa_family == AF_INET)
		return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr && a->v4.sin_port == b->v4.sin_port;
	return memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof a->v6.sin6_addr) == 0 &&
		a->v6.sin6_port == b->v6.sin6_port && a->v6.sin6_scope_id == b->v6.sin6_scope_id;
}

/* Compare the hosts alone. */
static bool sockaddr_same_host(const union net_sockaddr *a, const union net_sockaddr *b)
{
	union net_sockaddr c = *b;
	if (c.any.sa_family == AF_INET)
		c.v4.sin_port = a->v4.sin_port;
	else
		c.v6.sin6_port = a->v6.sin6_port;
	return sockaddr_equal(a, &c);
}

/* Return the index of |a|; |all->n|: it is not there. */
static size_t addresses_find(const struct net_addresses *all, const union net_sockaddr *a)
{
	size_t i = 0;
	while (i < all->n && !sockaddr_equal(&all->at[i], a))
		i++;
	return i;
}

/* ---- the list of names ---- */

void net_name_set_interval(cgn_nsec interval)
{
	atomic_store(&names_interval, interval);
}

cgn_nsec net_name_interval(void)
{
	return atomic_load_explicit(&names_interval, memory_order_relaxed);
}

static struct net_name *name_find(const struct net_addr *a)
{
	cgn_list_each (l, &names) {
		struct net_name *n = CGN_CONTAINER(l, struct net_name, link);
		if (strcmp(n->addr.host, a->host) == 0 && strcmp(n->addr.port, a->port) == 0)
			return n;
	}
	return NULL;
}

static struct net_name *name_new(const struct net_addr *a)
{
	struct net_name *n = CGN_NEW(struct net_name);
	n->tag = NAME_TAG;
	n->addr = *a;
	cgn_list_push(&names, &n->link);
	return n;
}

struct net_name *net_name_get(const struct net_addr *a)
{
	(void)pthread_mutex_lock(&names_lock);
	struct net_name *n = name_find(a);
	if (n == NULL)
		n = name_new(a);
	else if (n->refs == 0)
		names_unused--;
	n->refs++;
	(void)pthread_mutex_unlock(&names_lock);
	return n;
}

static struct net_name *name_ref(struct net_name *n)
{
	(void)pthread_mutex_lock(&names_lock);
	n->refs++;
	(void)pthread_mutex_unlock(&names_lock);
	return n;
}

/* Forget the name that has been without a user for longest. */
static void names_trim(void)
{
	cgn_list_each (l, &names) {
		struct net_name *n = CGN_CONTAINER(l, struct net_name, link);
		if (n->refs > 0)
			continue;
		cgn_list_drop(&n->link);
		names_unused--;
		n->tag = 0;
		free(n);
		return;
	}
}

void net_name_free(struct net_name **take)
{
	struct net_name *n = CGN_TAKE_LIVE(take, NAME_TAG);
	if (n == NULL)
		return;
	(void)pthread_mutex_lock(&names_lock);
	if (--n->refs == 0) {
		cgn_list_drop(&n->link);
		cgn_list_push(&names, &n->link);
		if (++names_unused > NAME_KEPT)
			names_trim();
	}
	(void)pthread_mutex_unlock(&names_lock);
}

/* ---- the chosen address; the lock is held ---- */

static void name_choose(struct net_name *n, size_t i)
{
	n->chosen = i;
	(void)atomic_fetch_add(&n->version, 1);
}

static void name_list(const struct net_name *n, struct net_addresses *out)
{
	out->n = 0;
	for (size_t i = 0; i < n->all.n; i++)
		out->at[out->n++] = n->all.at[(n->chosen + i) % n->all.n];
}

/* Return the index of the address that another port of the same host uses, or 0. An engine's KV events then come from where
 * its requests go. */
static size_t name_kin(const struct net_name *n, const struct net_addresses *all)
{
	cgn_list_each (l, &names) {
		const struct net_name *kin = CGN_CONTAINER(l, struct net_name, link);
		if (kin == n || kin->all.n == 0 || strcmp(kin->addr.host, n->addr.host) != 0)
			continue;
		for (size_t i = 0; i < all->n; i++)
			if (sockaddr_same_host(&all->at[i], &kin->all.at[kin->chosen]))
				return i;
	}
	return 0;
}

static void name_moved_log(const struct net_name *n, const union net_sockaddr *from,
	const union net_sockaddr *to)
{
	char before[64], after[64];
	net_addr_text(&from->any, before, sizeof before);
	net_addr_text(&to->any, after, sizeof after);
	cgn_log_limited(INFO, "lookup.moved", F_STR("name", n->addr.host), F_STR("from", before),
		F_STR("to", after));
}

/* Take the addresses of a look-up. The chosen one stays while the name has it. */
static void name_update(struct net_name *n, const struct net_addresses *all)
{
	bool had = n->all.n > 0;
	union net_sockaddr old = {.any = {.sa_family = AF_UNSPEC}};
	if (had)
		old = n->all.at[n->chosen];
	size_t i = had ? addresses_find(all, &old) : all->n;
	n->all = *all;
	if (i < all->n) {
		n->chosen = i;
		return;
	}
	name_choose(n, name_kin(n, all));
	if (had)
		name_moved_log(n, &old, &n->all.at[n->chosen]);
}

static void name_unknown(struct net_name *n, int rc)
{
	if (!n->unknown && n->all.n > 0)
		cgn_log_limited(WARN, "lookup.failed", F_STR("name", n->addr.host),
			F_STR("why", gai_strerror(rc)), F_STR("then", "its known address stays in use"));
	n->unknown = true;
}

/* ---- look-ups ---- */

/* Is the name to be looked up at |now|? |asker|: the caller needs a connection. */
static bool name_is_due(const struct net_name *n, cgn_nsec now, bool asker)
{
	cgn_nsec at = atomic_load_explicit(&n->looked_at, memory_order_relaxed);
	cgn_nsec wait = net_name_interval();
	if (asker && n->failing && NAME_RETRY < wait)
		wait = NAME_RETRY;
	return at == 0 || now >= at + wait;
}

bool net_name_addresses(struct net_name *n, cgn_nsec now, struct net_addresses *out)
{
	CGN_LIVE(n, NAME_TAG);
	(void)pthread_mutex_lock(&names_lock);
	bool known = n->all.n > 0 && !name_is_due(n, now, true) && !unlikely_way(UNLIKELY_name_asked);
	if (known)
		name_list(n, out);
	(void)pthread_mutex_unlock(&names_lock);
	return known;
}

bool net_name_told(struct net_name *n, cgn_nsec began, int rc, const struct addrinfo *list,
	struct net_addresses *out)
{
	struct net_addresses all = {.n = 0};
	CGN_LIVE(n, NAME_TAG);
	if (rc == 0)
		net_addresses_take(&all, list);
	(void)pthread_mutex_lock(&names_lock);
	bool newest = began >= atomic_load(&n->looked_at);
	if (newest) /* The look-up that began last is right. */
		atomic_store(&n->looked_at, began);
	if (newest && all.n > 0) {
		n->failing = n->unknown = false;
		name_update(n, &all);
	} else if (newest) {
		name_unknown(n, rc);
	}
	name_list(n, out);
	(void)pthread_mutex_unlock(&names_lock);
	return out->n > 0;
}

void net_name_works(struct net_name *n, const union net_sockaddr *first, const union net_sockaddr *a)
{
	CGN_LIVE(n, NAME_TAG);
	(void)pthread_mutex_lock(&names_lock);
	size_t i = addresses_find(&n->all, a);
	bool was = n->all.n > 0 && sockaddr_equal(&n->all.at[n->chosen], first);
	n->failing = false;
	if (was && i < n->all.n && i != n->chosen) {
		name_moved_log(n, first, a);
		name_choose(n, i);
	}
	(void)pthread_mutex_unlock(&names_lock);
}

void net_name_fails(struct net_name *n)
{
	CGN_LIVE(n, NAME_TAG);
	(void)pthread_mutex_lock(&names_lock);
	n->failing = true;
	(void)pthread_mutex_unlock(&names_lock);
}

/* Write the text of the chosen address; the lock is held. */
static void name_text(const struct net_name *n, char out[64])
{
	out[0] = '\0';
	if (n->all.n > 0)
		net_addr_text(&n->all.at[n->chosen].any, out, 64);
}

void net_name_shun(struct net_name *n, const char *peer)
{
	char text[64];
	CGN_LIVE(n, NAME_TAG);
	(void)pthread_mutex_lock(&names_lock);
	name_text(n, text);
	if (n->all.n > 1 && strcmp(text, peer) == 0) {
		size_t next = (n->chosen + 1) % n->all.n;
		name_moved_log(n, &n->all.at[n->chosen], &n->all.at[next]);
		name_choose(n, next);
	}
	(void)pthread_mutex_unlock(&names_lock);
}

static void lookup_work(void *arg)
{
	struct name_lookup *k = arg;
	k->rc = net_addr_resolve(&k->n->addr, false, false, &k->list);
}

static void lookup_done(void *arg)
{
	struct name_lookup *k = arg;
	struct net_addresses ignored;
	(void)net_name_told(k->n, k->began, k->rc, k->list, &ignored);
	if (k->rc == 0)
		freeaddrinfo(k->list);
	atomic_store(&k->n->looking, false);
	(void)atomic_fetch_sub(&names_lookups, 1);
	net_name_free(&k->n);
	free(k);
}

/* Take one of the look-ups that the process has. */
static bool lookup_allowed(void)
{
	if (atomic_fetch_add(&names_lookups, 1) < NAME_LOOKUPS)
		return true;
	(void)atomic_fetch_sub(&names_lookups, 1);
	return false;
}

void net_name_refresh(struct net_name *n, struct cgn_loop *l)
{
	CGN_LIVE(n, NAME_TAG);
	cgn_nsec now = cgn_loop_now(l), at = atomic_load_explicit(&n->looked_at, memory_order_relaxed);
	if (now < at + net_name_interval() || !lookup_allowed())
		return;
	if (atomic_exchange(&n->looking, true)) {
		(void)atomic_fetch_sub(&names_lookups, 1);
		return;
	}
	struct name_lookup *k = CGN_NEW(struct name_lookup);
	*k = (struct name_lookup){.n = name_ref(n), .began = now};
	cgn_loop_work(l, lookup_work, lookup_done, k);
}

bool net_name_is(struct net_name *n, const char *peer, uint64_t *version)
{
	char text[64];
	CGN_LIVE(n, NAME_TAG);
	uint64_t now = atomic_load_explicit(&n->version, memory_order_acquire);
	if (*version == now)
		return true;
	(void)pthread_mutex_lock(&names_lock);
	name_text(n, text);
	now = atomic_load(&n->version);
	(void)pthread_mutex_unlock(&names_lock);
	if (strcmp(text, peer) != 0)
		return false;
	*version = now;
	return true;
}
