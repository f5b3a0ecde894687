/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/rack/roll.h"

#include <stdio.h>
#include <stdlib.h>

#include "ctl/rack/stage.h"
#include "io/os/disk/disk.h"

#define ETCD_ENV "/etc/cognitora/etcd.env"
#define TARGET   "/etc/systemd/system/cognitora.target"

/* Append a host's orders about units; none: the host is not asked. */
typedef void (*orders_fn)(const struct rack_node *node, enum rack_role role, struct cgn_buf *out);

/* ---- calls ---- */

static void units_order(const char *order, unsigned roles, struct cgn_buf *out)
{
	for (unsigned i = 0; i < RACK_ROLES; i++)
		if ((roles & RACK_BIT(i)) != 0)
			cgn_buf_fmt(out, "%s %s\n", order, rack_unit((enum rack_role)i));
}

static void done_note(struct fleet_call *calls, size_t n, unsigned roles)
{
	for (size_t i = 0; i < n; i++) {
		struct rack_node *node = calls[i].user;
		node->started |= calls[i].done ? roles : 0;
		fleet_call_fini(&calls[i]);
	}
}

/* Give each of |n| hosts its orders, several at a time. */
static CGN_RC orders_send(struct rack_roll *r, struct rack_node *const *nodes, size_t n, orders_fn orders,
	enum rack_role role, const char *say, struct cgn_err *err)
{
	size_t k = 0;
	struct fleet_call *calls = CGN_NEW_ARRAY(struct fleet_call, n);
	for (size_t i = 0; i < n; i++) {
		struct fleet_call *c = &calls[k];
		*c = (struct fleet_call){.host = nodes[i]->host, .order = "units", .user = nodes[i]};
		orders(nodes[i], role, &c->input);
		(void)snprintf(c->say, sizeof c->say, "%s", say);
		k += c->input.n > 0;
	}
	cgn_rc rc = fleet_run(r->fleet, calls, k, err);
	done_note(calls, k, role < RACK_ROLES ? RACK_BIT(role) : 0);
	free(calls);
	return rc;
}

/* ---- files ---- */

static struct rack_roll *rolling; /* Callbacks have the node only. */

static CGN_RC put_prepare(struct fleet_call *c, struct cgn_err *err)
{
	return rack_stage(rolling->fleet, rolling->stage, c->user, &c->file, err);
}

static void put_call(struct fleet_call *c, struct rack_node *node)
{
	*c = (struct fleet_call){.host = node->host, .order = "put", .user = node, .prepare = put_prepare};
	if (node->writes == 0)
		(void)snprintf(c->say, sizeof c->say, "%zu files removed", node->n_gone);
	else if (node->n_gone > 0)
		(void)snprintf(c->say, sizeof c->say, "%u files written, %zu removed", node->writes,
			node->n_gone);
	else
		(void)snprintf(c->say, sizeof c->say, "%u files written", node->writes);
}

static CGN_RC files_put(struct rack_roll *r, struct cgn_err *err)
{
	size_t k = 0;
	struct fleet_call *calls = CGN_NEW_ARRAY(struct fleet_call, r->n);
	for (size_t i = 0; i < r->n; i++)
		if (rack_plan_writes(r->nodes[i]))
			put_call(&calls[k++], r->nodes[i]);
	fleet_remove(r->stage);
	cgn_rc rc = k > 0 ? disk_mkdirs(r->stage, 0700, err) : CGN_OK;
	if (cgn_ok(rc))
		rc = fleet_run(r->fleet, calls, k, err);
	fleet_remove(r->stage);
	for (size_t i = 0; i < k; i++) {
		struct rack_node *node = calls[i].user;
		node->written = calls[i].done;
		fleet_call_fini(&calls[i]);
	}
	free(calls);
	return rc;
}

/* ---- orders ---- */

static bool target_goes(const struct rack_node *node)
{
	for (size_t i = 0; i < node->n_gone; i++)
		if (strcmp(node->gone[i].path, TARGET) == 0)
			return true;
	return false;
}

static void stop_orders(const struct rack_node *node, enum rack_role role, struct cgn_buf *out)
{
	(void)role;
	for (unsigned i = RACK_ROLES; i-- > 0;)
		if (i != RACK_ETCD || node->n == 0)
			units_order("disable", node->disable & RACK_BIT(i), out);
	if (target_goes(node))
		cgn_buf_putz(out, "disable cognitora.target\n");
}

static void load_orders(const struct rack_node *node, enum rack_role role, struct cgn_buf *out)
{
	(void)role;
	if (rack_plan_writes(node))
		cgn_buf_putz(out, "reload\n");
	units_order("enable", node->enable, out);
	if ((node->enable & ~RACK_BIT(RACK_ETCD)) != 0)
		cgn_buf_putz(out, "enable cognitora.target\n");
}

static void restart_orders(const struct rack_node *node, enum rack_role role, struct cgn_buf *out)
{
	units_order("restart", (node->start | node->restart) & RACK_BIT(role), out);
}

static void start_orders(const struct rack_node *node, enum rack_role role, struct cgn_buf *out)
{
	units_order("restart", node->start & RACK_BIT(role), out);
}

/* Members of an etcd that did not run before wait for each other. */
static bool etcd_is_new(const struct rack_node *node)
{
	return (node->start & RACK_BIT(RACK_ETCD)) != 0 || rack_seen_find(&node->seen, ETCD_ENV) == NULL;
}

static void begin_orders(const struct rack_node *node, enum rack_role role, struct cgn_buf *out)
{
	if (etcd_is_new(node) && !rack_etcd_joins(rolling->etcd, node->host))
		units_order("begin", (node->start | node->restart) & RACK_BIT(role), out);
}

static void await_orders(const struct rack_node *node, enum rack_role role, struct cgn_buf *out)
{
	if (etcd_is_new(node) && !rack_etcd_joins(rolling->etcd, node->host))
		units_order("await", (node->start | node->restart) & RACK_BIT(role), out);
}

static void settled_orders(const struct rack_node *node, enum rack_role role, struct cgn_buf *out)
{
	(void)role;
	if ((rack_plan_writes(node) && node->record.n > 0) || node->seen.interrupted)
		cgn_buf_putz(out, "settled\n");
}

/* ---- roles ---- */

static CGN_RC one_restart(struct rack_roll *r, struct rack_node *node, enum rack_role role,
	struct cgn_err *err)
{
	char say[100];
	(void)snprintf(say, sizeof say, "%s restarted", rack_unit(role));
	return orders_send(r, &node, 1, restart_orders, role, say, err);
}

static void quit_orders(const struct rack_node *node, enum rack_role role, struct cgn_buf *out)
{
	if (node->n > 0)
		units_order("disable", node->disable & RACK_BIT(role), out);
}

/* A member that was removed ends by itself; its unit would start it again. */
static CGN_RC member_leave(struct rack_roll *r, const struct rack_member *m, struct cgn_err *err)
{
	CGN_TRY(rack_etcd_remove(r->etcd, m, err));
	printf("etcd: member %s left\n", m->name[0] != '\0' ? ctl_shown(m->name) : ctl_shown(m->peer_url));
	for (size_t i = 0; i < r->n; i++)
		if (strcmp(r->nodes[i]->host->name, m->name) == 0) {
			CGN_TRY(orders_send(r, &r->nodes[i], 1, quit_orders, RACK_ETCD, "etcd stopped", err));
			r->nodes[i]->disable &= ~RACK_BIT(RACK_ETCD);
		}
	return CGN_OK;
}

static CGN_RC member_vote(struct rack_roll *r, const char *name, const char *peer_url, struct cgn_err *err)
{
	CGN_TRY(rack_etcd_promote(r->etcd, peer_url, err));
	printf("etcd: member %s has a vote\n", ctl_shown(name));
	return CGN_OK;
}

/* A member begins without a vote: one that does not start does no harm to the others. */
static CGN_RC member_join(struct rack_roll *r, struct rack_node *node, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf cluster = {0}, url = {0};
	struct fleet_call c = {.host = node->host, .order = "units", .user = node, .say = "etcd joined"};
	rack_peer_url(node->host, &url);
	CGN_TRY(rack_etcd_add(r->etcd, node->host, &cluster, err));
	cgn_buf_fmt(&c.input, "join etcd %s %s\n", r->gate.rack->cluster, cgn_buf_z(&cluster));
	cgn_rc rc = fleet_run(r->fleet, &c, 1, err);
	done_note(&c, 1, RACK_BIT(RACK_ETCD));
	CGN_TRY(rc);
	return member_vote(r, node->host->name, cgn_buf_z(&url), err);
}

static struct rack_node *node_of(const struct rack_roll *r, const struct rack_host *h)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->nodes[i]->host == h)
			return r->nodes[i];
	return NULL;
}

static CGN_RC members_roll(struct rack_roll *r, struct cgn_err *err)
{
	static struct rack_members was; /* The moves borrow from the members, which each call replaces. */
	static struct rack_moves m;
	was = r->etcd->members;
	CGN_TRY(rack_moves_find(r->gate.rack, r->etcd->data, &was, &m, err));
	for (size_t i = 0; i < m.n_promote; i++)
		CGN_TRY(member_vote(r, m.promote[i]->name, m.promote[i]->peer_url, err));
	for (size_t i = 0; i < m.n_leave || i < m.n_join; i++) {
		if (i < m.n_leave)
			CGN_TRY(member_leave(r, m.leave[i], err));
		if (i < m.n_join)
			CGN_TRY(member_join(r, node_of(r, m.join[i]), err));
	}
	return CGN_OK;
}

static CGN_RC etcd_roll(struct rack_roll *r, struct cgn_err *err)
{
	CGN_TRY(orders_send(r, r->nodes, r->n, begin_orders, RACK_ETCD, "", err));
	CGN_TRY(orders_send(r, r->nodes, r->n, await_orders, RACK_ETCD, "etcd started", err));
	if (r->etcd->runs)
		CGN_TRY(members_roll(r, err));
	for (size_t i = 0; i < r->n; i++)
		if (!etcd_is_new(r->nodes[i]))
			CGN_TRY(one_restart(r, r->nodes[i], RACK_ETCD, err));
	return orders_send(r, r->nodes, r->n, quit_orders, RACK_ETCD, "etcd stopped", err);
}

static CGN_RC agent_restart(struct rack_roll *r, struct rack_node *node, struct cgn_err *err)
{
	struct rack_gate_node was;
	if ((node->restart & RACK_BIT(RACK_AGENT)) == 0)
		return CGN_OK;
	CGN_TRY(rack_gate_close(&r->gate, node->host->name, &was, err));
	cgn_rc rc = one_restart(r, node, RACK_AGENT, err);
	if (!cgn_ok(rc) && was.drained)
		printf("%s: it is cordoned; when its agent runs again: cgn-ctl cluster uncordon %s\n",
			node->host->name, node->host->name);
	CGN_TRY(rc);
	return rack_gate_open(&r->gate, node->host->name, &was, err);
}

static CGN_RC agents_roll(struct rack_roll *r, struct cgn_err *err)
{
	CGN_TRY(orders_send(r, r->nodes, r->n, start_orders, RACK_AGENT, "cgn-agent started", err));
	for (size_t i = 0; i < r->n; i++)
		CGN_TRY(agent_restart(r, r->nodes[i], err));
	return CGN_OK;
}

static CGN_RC units_roll(struct rack_roll *r, struct cgn_err *err)
{
	CGN_TRY(etcd_roll(r, err));
	CGN_TRY(orders_send(r, r->nodes, r->n, restart_orders, RACK_STORE, "cgn-kvcached started", err));
	for (size_t i = 0; i < r->n; i++)
		CGN_TRY(one_restart(r, r->nodes[i], RACK_ROUTER, err));
	CGN_TRY(agents_roll(r, err));
	return orders_send(r, r->nodes, r->n, restart_orders, RACK_METRICS, "cgn-metrics started", err);
}

CGN_RC rack_roll_apply(struct rack_roll *r, struct cgn_err *err)
{
	bool units = r->fleet->root[0] == '\0';
	rolling = r;
	if (units)
		CGN_TRY(orders_send(r, r->nodes, r->n, stop_orders, RACK_ROLES, "units stopped", err));
	CGN_TRY(files_put(r, err));
	if (units) {
		CGN_TRY(orders_send(r, r->nodes, r->n, load_orders, RACK_ROLES, "", err));
		CGN_TRY(units_roll(r, err));
	}
	return orders_send(r, r->nodes, r->n, settled_orders, RACK_ROLES, "", err);
}
