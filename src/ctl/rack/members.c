/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/rack/members.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "io/os/loop/loop.h"
#include "io/wire/etcd/etcd.h"

#define CALL_TIMEOUT (5 * CGN_SEC)
#define CHANGE_LIMIT (120 * CGN_SEC)
#define LOOK_EVERY   300000 /* microseconds */
#define ETCD_ENV     "/etc/cognitora/etcd.env"

/* ---- calls ---- */

static void members_take(const struct etcd_result *r, struct rack_members *out)
{
	out->n = 0;
	for (size_t i = 0; i < r->n_members && out->n < RACK_MAX_MEMBERS; i++) {
		struct rack_member *m = &out->list[out->n++];
		*m = (struct rack_member){.id = r->members[i].id, .learner = r->members[i].learner};
		(void)snprintf(m->name, sizeof m->name, "%s", r->members[i].name);
		(void)snprintf(m->peer_url, sizeof m->peer_url, "%s", r->members[i].peer_url);
	}
}

static void on_done(void *user, const struct etcd_result *r)
{
	struct rack_etcd *e = user;
	e->end = *r->err;
	if (r->members != NULL)
		members_take(r, &e->members);
	cgn_loop_stop(e->loop);
}

/* Run the call that was begun to its end. */
static CGN_RC call_end(struct rack_etcd *e, const char *what, struct cgn_err *err)
{
	cgn_loop_run(e->loop);
	return e->end.code == CGN_FINE ? CGN_OK
				       : CGN_FAIL_AS(err, e->end.code, "etcd: %s: %s", what, e->end.msg);
}

/* Members are listed also without a majority; a read is not answered then. */
static CGN_RC members_ask(struct rack_etcd *e, struct cgn_err *err)
{
	const struct etcd_range range = {.key = CGN_STR("cognitora")};
	(void)etcd_get(e->client, &range, on_done, e);
	CGN_TRY(call_end(e, "it does not answer", err));
	etcd_member_list(e->client, on_done, e);
	return call_end(e, "its members cannot be listed", err);
}

/* ---- the client ---- */

/* Is a member of the host expected to answer? Of hosts that were not asked nothing is known. */
static bool host_may_answer(const struct rack_etcd *e, struct rack_node *const *nodes, size_t n,
	const struct rack_host *h)
{
	for (size_t i = 0; i < n; i++)
		if (nodes[i]->host == h)
			return e->data[h - e->rack->hosts] == RACK_DATA_THERE &&
				(nodes[i]->seen.active & RACK_BIT(RACK_ETCD)) != 0;
	return true;
}

static void data_find(struct rack_etcd *e, struct rack_node *const *nodes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		enum rack_etcd_data *data = &e->data[nodes[i]->host - e->rack->hosts];
		*data = RACK_DATA_NONE;
		for (size_t k = 0; k < nodes[i]->seen.n_etcd_data; k++)
			if (cgn_str_is(nodes[i]->seen.etcd_data[k], e->rack->cluster))
				*data = RACK_DATA_THERE;
	}
}

static CGN_RC client_open(struct rack_etcd *e, struct rack_node *const *nodes, size_t n, struct cgn_err *err)
{
	const struct rack_host *h;
	const char *list[RACK_MAX_MEMBERS];
	char ca[PATH_MAX], cert[PATH_MAX], key[PATH_MAX];
	struct etcd_cfg cfg = {.endpoints = list, .timeout = CALL_TIMEOUT};
	for (size_t i = 0; (h = rack_nth(e->rack, RACK_ETCD, i)) != NULL && i < RACK_MAX_MEMBERS; i++) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf at = {0};
		if (!host_may_answer(e, nodes, n, h))
			continue;
		rack_endpoint(h, "", "", "2379", &at);
		(void)snprintf(e->endpoints[cfg.n_endpoints], sizeof e->endpoints[0], "https://%s",
			cgn_buf_z(&at));
		list[cfg.n_endpoints] = e->endpoints[cfg.n_endpoints];
		cfg.n_endpoints++;
	}
	if (cfg.n_endpoints == 0)
		return CGN_FAIL(err, UNAVAILABLE, "etcd: it runs on no host");
	(void)snprintf(ca, sizeof ca, "%s/ca.pem", e->pki);
	(void)snprintf(cert, sizeof cert, "%s/admin.pem", e->pki);
	(void)snprintf(key, sizeof key, "%s/admin.key", e->pki);
	cfg.ca_file = ca;
	cfg.cert_file = cert;
	cfg.key_file = key;
	CGN_TRY(cgn_loop_new(&e->loop, err));
	return etcd_new(e->loop, &cfg, &e->client, err);
}

/* Is this the first start of a host whose files an earlier run has written? Then its members are as the inventory says. */
static bool first_start(const struct rack_node *node)
{
	return rack_seen_find(&node->seen, ETCD_ENV) != NULL;
}

/* Without an answer, a host that has no data must not begin an etcd of its own beside that of the others. */
static CGN_RC silence_check(const struct rack_etcd *e, struct rack_node *const *nodes, size_t n,
	const struct cgn_err *why, struct cgn_err *err)
{
	bool others = false;
	for (size_t i = 0; i < e->rack->n; i++)
		others = others || (rack_has(&e->rack->hosts[i], RACK_ETCD) && e->data[i] != RACK_DATA_NONE);
	for (size_t i = 0; others && i < n; i++)
		if (rack_has(nodes[i]->host, RACK_ETCD) &&
			e->data[nodes[i]->host - e->rack->hosts] == RACK_DATA_NONE && !first_start(nodes[i]))
			return CGN_FAIL(err, UNAVAILABLE,
				"host %s has no data of etcd and must join the members that other hosts have; %s",
				nodes[i]->host->name, why->msg);
	return CGN_OK;
}

CGN_RC rack_etcd_open(struct rack_etcd *e, struct rack_node *const *nodes, size_t n, struct cgn_err *err)
{
	struct cgn_err why;
	if (rack_nth(e->rack, RACK_ETCD, 0) == NULL)
		return CGN_OK;
	data_find(e, nodes, n);
	cgn_rc rc = client_open(e, nodes, n, &why);
	if (cgn_ok(rc))
		rc = members_ask(e, &why);
	e->runs = cgn_ok(rc);
	return e->runs ? rack_moves_find(e->rack, e->data, &e->members, &e->moves, err)
		       : silence_check(e, nodes, n, &why, err);
}

void rack_etcd_close(struct rack_etcd *e)
{
	etcd_free(&e->client);
	cgn_loop_close(&e->loop);
}

/* ---- the moves ---- */

void rack_etcd_show(const struct rack_etcd *e)
{
	if (!e->runs || rack_moves_are_none(&e->moves))
		return;
	printf("== members of etcd, one after another\n");
	for (size_t i = 0; i < e->moves.n_leave; i++)
		printf("leave   %s (%s): the inventory has no host with that name and address, or the host has no data\n",
			e->moves.leave[i]->name[0] != '\0' ? ctl_shown(e->moves.leave[i]->name)
							   : "(not started)",
			ctl_shown(e->moves.leave[i]->peer_url));
	for (size_t i = 0; i < e->moves.n_join; i++)
		printf("join    %s%s\n", e->moves.join[i]->name,
			e->data[e->moves.join[i] - e->rack->hosts] == RACK_DATA_THERE
				? ": its data is of a member that has left, and is moved aside"
				: "");
	for (size_t i = 0; i < e->moves.n_promote; i++)
		printf("vote    %s: it has none yet\n", ctl_shown(e->moves.promote[i]->name));
}

bool rack_etcd_joins(const struct rack_etcd *e, const struct rack_host *h)
{
	for (size_t i = 0; e->runs && i < e->moves.n_join; i++)
		if (e->moves.join[i] == h)
			return true;
	return false;
}

/* A change of the members that is tried until etcd takes it. */
struct change {
	void (*begin)(struct rack_etcd *e, const struct change *c);
	const char *what, *peer_url;
	uint64_t id;
};

/* etcd refuses changes while members have not been connected for some seconds, and a vote until the member has all data. */
static CGN_RC change_try(struct rack_etcd *e, const struct change *c, struct cgn_err *err)
{
	cgn_nsec end = cgn_clock_now() + CHANGE_LIMIT;
	for (;;) {
		c->begin(e, c);
		cgn_rc rc = call_end(e, c->what, err);
		if (cgn_ok(rc) || rc.code == CGN_NOT_FOUND || cgn_clock_now() > end)
			return rc;
		(void)usleep(LOOK_EVERY);
	}
}

static void remove_begin(struct rack_etcd *e, const struct change *c)
{
	etcd_member_remove(e->client, c->id, on_done, e);
}

static void add_begin(struct rack_etcd *e, const struct change *c)
{
	etcd_member_add(e->client, c->peer_url, on_done, e);
}

static void promote_begin(struct rack_etcd *e, const struct change *c)
{
	etcd_member_promote(e->client, c->id, on_done, e);
}

CGN_RC rack_etcd_remove(struct rack_etcd *e, const struct rack_member *m, struct cgn_err *err)
{
	cgn_rc rc =
		change_try(e, &(struct change){remove_begin, "a member cannot be removed", .id = m->id}, err);
	return rc.code == CGN_NOT_FOUND ? CGN_OK : rc; /* An attempt whose answer was lost has removed it. */
}

CGN_RC rack_etcd_add(struct rack_etcd *e, const struct rack_host *h, struct cgn_buf *cluster,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf url = {0};
	rack_peer_url(h, &url);
	CGN_TRY(change_try(e, &(struct change){add_begin, "a member cannot be added", cgn_buf_z(&url)}, err));
	rack_join_cluster(&e->members, h, cluster);
	return CGN_OK;
}

static const struct rack_member *member_at(const struct rack_members *m, const char *peer_url)
{
	for (size_t i = 0; i < m->n; i++)
		if (strcmp(m->list[i].peer_url, peer_url) == 0)
			return &m->list[i];
	return NULL;
}

CGN_RC rack_etcd_promote(struct rack_etcd *e, const char *peer_url, struct cgn_err *err)
{
	const struct rack_member *m = member_at(&e->members, peer_url);
	if (m == NULL)
		return CGN_FAIL(err, NOT_FOUND, "etcd: it has no member at %s any more", peer_url);
	return change_try(e, &(struct change){promote_begin, "a new member gets no vote", .id = m->id}, err);
}
