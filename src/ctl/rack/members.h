/* SPDX-License-Identifier: Apache-2.0 */
/* members: the members of a rack's etcd, asked and changed at its client port with the certificate of admin. Blocks; the one thread of
 * cgn-ctl. */
#pragma once
#include "ctl/rack/plan.h"

struct rack_etcd {
	const struct rack *rack;
	const char *pki;                          /* Folder with ca.pem, admin.pem and admin.key. */
	enum rack_etcd_data data[RACK_MAX_HOSTS]; /* By host of |rack|. */
	bool runs;                                /* the etcd answered: the next two are valid */
	struct rack_members members;
	struct rack_moves moves;
	/* For this module. */
	struct cgn_loop *loop;
	struct etcd *client;
	struct cgn_err end;
	char endpoints[RACK_MAX_MEMBERS][300];
};
/* Find out whether the rack has an etcd that runs, and which members are to join or leave. |nodes|: hosts
 * that were asked for their state. UNAVAILABLE: a host has no data and is to join an etcd that does not
 * answer; CONFLICT: as rack_moves_find. */
CGN_RC rack_etcd_open(struct rack_etcd *e, struct rack_node *const *nodes, size_t n, struct cgn_err *err);
void rack_etcd_close(struct rack_etcd *e);
void rack_etcd_show(const struct rack_etcd *e); /* Print the moves; nothing if there are none. */
/* Is the host to join an etcd that runs? */
bool rack_etcd_joins(const struct rack_etcd *e, const struct rack_host *h);

/* Changes are tried for at most two minutes: etcd refuses them until all members have been connected for some seconds. */
CGN_RC rack_etcd_remove(struct rack_etcd *e, const struct rack_member *m, struct cgn_err *err);
/* Make the host a member without a vote, and append what it needs to start: ETCD_INITIAL_CLUSTER. */
CGN_RC rack_etcd_add(struct rack_etcd *e, const struct rack_host *h, struct cgn_buf *cluster,
	struct cgn_err *err);
/* Give the member with that peer URL a vote. etcd refuses that until it has what the others have. */
CGN_RC rack_etcd_promote(struct rack_etcd *e, const char *peer_url, struct cgn_err *err);
