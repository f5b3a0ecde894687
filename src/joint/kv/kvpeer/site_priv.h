/* SPDX-License-Identifier: Apache-2.0 */
/* site: the sites whose stores are peers: this one, and others. */
#pragma once
#include "joint/kv/kvpeer/kvpeer.h"

#define KVPEER_HERE BLOCK_SITES /* kvpeer_site.index of this site */
struct kvpeer_site {
	unsigned index;   /* place in kvpeer_cfg.sites */
	const char *name; /* NULL: this site */
	bool listens;
	struct quic_endpoint *ep;
	const char *peer_name; /* verified in certificates of peers; NULL: their address */
	/* Added to the instances that peers name: a site cannot pass for a store of another one. */
	uint64_t salt;
	size_t guests;
	uint64_t bytes_in, bytes_out, withheld[KVSITE_WHYS];
};

/* Open the endpoints: that of this site, and of each other one. */
CGN_RC kvpeer_sites_open(struct kvpeer *kp, const struct kvpeer_cfg *cfg, quic_accept_fn *on_accept,
	struct cgn_err *err);
void kvpeer_sites_close(struct kvpeer *kp);
/* Is it this store's own site? */
static inline bool kvpeer_is_here(const struct kvpeer_site *s)
{
	return s->index == KVPEER_HERE;
}
struct kvpeer_site *kvpeer_site_of(struct kvpeer *kp, const struct quic_conn *c); /* |c| was accepted */
/* May the site have a block? Counts blocks that it must not have. */
bool kvpeer_site_may(struct kvpeer *kp, struct kvpeer_site *s, struct block_leave leave);
/* May a block that the site sent be stored? */
bool kvpeer_site_takes_in(const struct kvpeer *kp, const struct kvpeer_site *s, struct cgn_str tenant,
	struct cgn_str model);
/* Count bytes of blocks: from a peer (|in|) or to it. */
void kvpeer_site_count(struct kvpeer *kp, struct kvpeer_site *s, bool in, uint64_t bytes);
