/* SPDX-License-Identifier: Apache-2.0 */
/* members: several routers and agents that meet in etcd, while all of them fail. What must hold:
 *   - after the last fault every router knows exactly the nodes that are registered, within CONVERGE;
 *   - a router that hears etcd sends nothing to a node that has been gone from etcd for longer than NOTICE;
 *   - while a router cannot hear etcd, a model that it does not know is a 503 and no 404;
 *   - a cordon that a router has confirmed is there, whatever ended meanwhile;
 *   - never do two routers lead at once, as long as etcd loses nothing. */
#include <stdio.h>
#include <string.h>

#include "base/pb/pb.h"
#include "cognitora/v1/control.pb-c.h"
#include "io/os/loop/loop.h"
#include "io/wire/grpc/grpc.h"
#include "parts.h"
#include "scenarios.h"

#define ROUTERS 3
#define AGENTS  3
#define NOTICE \
	(25 * WORLD_SEC) /* Probes every 10 s, 5 s for an answer, and what comes before a fault is noticed */
#define CONVERGE (45 * WORLD_SEC) /* A lease of 15 s, and twice the time of NOTICE's parts */
#define PREFIX   "/cognitora/cognitora/"

enum cordon { CORDON_NO, CORDON_YES, CORDON_EITHER };
static struct {
	struct model_etcd *etcd;
	struct world_host *etcd_hosts[ETCD_MEMBERS];
	size_t n_etcd, n_routers;
	struct kept_part *routers[ROUTERS], *agents[AGENTS], *engines[AGENTS];
	uint64_t heard_since
		[ROUTERS]; /* Since when nothing is between the router and an etcd that works; 0: something is */
	uint64_t deaf_since[ROUTERS]; /* Since when the router can hear no member; 0: it can hear one */
	unsigned cuts[ROUTERS][ETCD_MEMBERS];
	enum cordon cordons[AGENTS];
	bool vague[AGENTS]; /* An order was not confirmed */
	struct world_host *orders;
	bool loses;       /* etcd has lost data */
	unsigned losses;  /* How often */
	uint64_t lost_at; /* When it began to serve what it had left */
	unsigned answered, refused, unknown, clients;
	bool over;
} t;

static const char *agent_name(size_t i)
{
	static const char *const names[AGENTS] = {"a", "b", "c"};
	return names[i];
}

/* ---- the cluster ---- */

static const char *endpoints_text(void)
{
	static char text[200];
	size_t n = 0;
	for (size_t i = 0; i < t.n_etcd; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%s\"http://%s:%d\"", i > 0 ? ", " : "",
			world_host_address(t.etcd_hosts[i]), ETCD_PORT);
	return text;
}

static void router_make(size_t i)
{
	static const char *const argv[] = {"cgn-router", "--config", "/etc/cgn.toml", NULL};
	char name[24];
	(void)snprintf(name, sizeof name, "router-%zu", i);
	struct world_host *h = world_host_new(name);
	kept_file(h, "/etc/cgn.toml",
		"[security]\ninsecure = true\n[router]\nlisten = \"0.0.0.0:8080\"\nlisten_grpc = \"0.0.0.0:9090\"\n"
		"listen_admin = \"0.0.0.0:9091\"\nworker_threads = 2\n[cluster]\nstate_backend = \"etcd\"\n"
		"state_dir = \"/var/lib/cgn\"\netcd_endpoints = [%s]\n"
		"[router.autoscaler]\nenabled = true\nmode = \"shadow\"\n",
		endpoints_text());
	kept_file(h, "/var/lib/cgn/.keep", "%s", "");
	kept_file(h, "/tmp/.keep", "%s", "");
	t.routers[i] = kept_new(h, name, cgn_router_main, argv);
}

static void agent_make(size_t i)
{
	static const char *const argv[] = {"cgn-agent", "--config", "/etc/cgn.toml", NULL};
	static const char *const models[AGENTS] = {"m-a", "m-b", "m-c"};
	const char *const sim[] = {"cgn-sim", "--model", "m", "--model", models[i], "--listen",
		"127.0.0.1:8000", "--time-scale", "0.1", NULL};
	char name[24];
	(void)snprintf(name, sizeof name, "agent-%s", agent_name(i));
	struct world_host *h = world_host_new(name);
	kept_file(h, "/etc/cgn.toml",
		"[security]\ninsecure = true\n[agent]\nnode_id = \"%s\"\nlisten = \"0.0.0.0:7080\"\n"
		"listen_admin = \"0.0.0.0:7081\"\nadvertise = \"%s:7080\"\n[cluster]\nstate_backend = \"etcd\"\n"
		"etcd_endpoints = [%s]\n[engine]\nkind = \"sim\"\nurl = \"http://127.0.0.1:8000\"\n",
		agent_name(i), world_host_address(h), endpoints_text());
	kept_file(h, "/tmp/.keep", "%s", "");
	t.agents[i] = kept_new(h, name, cgn_agent_main, argv);
	t.engines[i] = kept_new(h, "cgn-sim", cgn_sim_main, sim);
}

static void cluster_make(void)
{
	char name[24];
	t.n_etcd = world_chance(2) ? 1 : 3;
	t.n_routers = kept_between(2, ROUTERS);
	for (size_t i = 0; i < t.n_etcd; i++) {
		(void)snprintf(name, sizeof name, "etcd-%zu", i);
		t.etcd_hosts[i] = world_host_new(name);
	}
	t.orders = world_host_new("orders");
	t.etcd = model_etcd_new(t.etcd_hosts, t.n_etcd);
	for (size_t i = 0; i < t.n_routers; i++)
		router_make(i);
	for (size_t i = 0; i < AGENTS; i++)
		agent_make(i);
	for (size_t i = 0; i < t.n_etcd; i++)
		model_etcd_start(t.etcd, i);
	for (size_t i = 0; i < AGENTS; i++) {
		kept_start(t.engines[i]);
		kept_start(t.agents[i]);
	}
	for (size_t i = 0; i < t.n_routers; i++)
		kept_start(t.routers[i]);
}

/* ---- hearing: call before and after each fault ---- */

static bool is_heard(size_t router)
{
	if (!kept_runs(t.routers[router]) || t.routers[router]->paused || !model_etcd_works(t.etcd))
		return false;
	for (size_t i = 0; i < t.n_etcd; i++)
		if (t.cuts[router][i] > 0 || !model_etcd_healthy(t.etcd, i))
			return false;
	return true;
}

static bool is_deaf(size_t router)
{
	for (size_t i = 0; i < t.n_etcd; i++)
		if (t.cuts[router][i] == 0 && model_etcd_runs(t.etcd, i) && model_etcd_works(t.etcd))
			return false;
	return true;
}

static void hearing_note(void)
{
	for (size_t i = 0; i < t.n_routers; i++) {
		bool heard = is_heard(i), deaf = is_deaf(i);
		t.heard_since[i] = !heard ? 0 : t.heard_since[i] != 0 ? t.heard_since[i] : world_now();
		t.deaf_since[i] = !deaf ? 0 : t.deaf_since[i] != 0 ? t.deaf_since[i] : world_now();
	}
}

/* ---- clients ---- */

struct question {
	size_t router;
	const char *model;
	uint64_t asked;
	uint64_t heard_since, deaf_since; /* As they were when it was asked */
	uint64_t gone_at[AGENTS];
};

static void node_key(char *key, size_t cap, size_t agent)
{
	(void)snprintf(key, cap, PREFIX "nodes/%s", agent_name(agent));
}

static void question_begin(struct question *q)
{
	char key[80];
	hearing_note();
	q->asked = world_now();
	q->heard_since = t.heard_since[q->router];
	q->deaf_since = t.deaf_since[q->router];
	for (size_t i = 0; i < AGENTS; i++) {
		node_key(key, sizeof key, i);
		q->gone_at[i] = model_etcd_gone_at(t.etcd, key);
	}
}

static void check_node(const struct question *q, struct cgn_str node)
{
	char key[80];
	for (size_t i = 0; i < AGENTS; i++) {
		if (!cgn_str_is(node, agent_name(i)) || q->gone_at[i] == 0 || q->heard_since == 0)
			continue;
		node_key(key, sizeof key, i);
		uint64_t since = q->gone_at[i] > q->heard_since ? q->gone_at[i] : q->heard_since;
		bool same = t.heard_since[q->router] == q->heard_since &&
			model_etcd_gone_at(t.etcd, key) == q->gone_at[i];
		if (same && q->asked > since + NOTICE)
			world_fail(
				"router %zu sent a request to node %s, which has been gone from etcd for %.1f s",
				q->router, agent_name(i), (double)(q->asked - q->gone_at[i]) / 1e9);
	}
}

/* The router heard nothing of etcd for long enough to know it, before it was asked and until it has answered. */
static void check_unknown(const struct question *q, const struct http_got *got)
{
	if (q->deaf_since == 0 || t.deaf_since[q->router] != q->deaf_since || t.routers[q->router]->paused)
		return;
	const struct kept_part *p = t.routers[q->router];
	uint64_t since = q->deaf_since > p->since ? q->deaf_since : p->since;
	if (q->asked > since + NOTICE || p->started > q->deaf_since)
		world_fail("router %zu says 404 for model %s while it cannot hear etcd for %.1f s: %s",
			q->router, q->model, (double)(q->asked - q->deaf_since) / 1e9,
			got->body.n > 0 ? got->body.p : "");
}

static int question_ask(struct question *q)
{
	struct http_got got;
	char body[200];
	question_begin(q);
	(void)snprintf(body, sizeof body, "{\"model\":\"%s\",\"prompt\":\"hello %llu\",\"max_tokens\":4}",
		q->model, (unsigned long long)world_draw(1000));
	int status = kept_ask(t.routers[q->router], 8080, "POST", "/v1/completions", body, &got);
	hearing_note();
	if (status == 200)
		check_node(q, http_header(&got, "x-cgn-node"));
	if (status == 404)
		check_unknown(q, &got);
	t.answered += status == 200;
	t.unknown += status == 404;
	t.refused += status != 200 && status != 404;
	http_got_fini(&got);
	return status;
}

static void client_run(void *arg)
{
	static const char *const models[] = {"m", "m", "m-a", "m-b", "m-c", "nope"};
	(void)arg;
	while (!t.over) {
		struct question q = {.router = world_draw(t.n_routers),
			.model = models[world_draw(CGN_COUNT(models))]};
		(void)question_ask(&q);
		world_sleep(kept_between(20 * WORLD_MS, 3 * WORLD_SEC));
	}
	t.clients--;
}

/* ---- the leader ---- */

/* Compare the value after the first |name| from |at| on. */
static bool document_says(const char *at, const char *name, const char *value)
{
	char key[64];
	(void)snprintf(key, sizeof key, "\"%s\":", name);
	const char *found = at != NULL ? strstr(at, key) : NULL;
	return found != NULL && strncmp(found + strlen(key), value, strlen(value)) == 0;
}

static bool leads_now(size_t router)
{
	struct http_got got;
	bool leads = kept_ask(t.routers[router], 9091, "GET", "/autoscaler", "", &got) == 200 &&
		document_says(got.body.p, "leads", "true");
	http_got_fini(&got);
	return leads;
}

/* A router that leads before and after another one was asked leads at that moment too, if no lease ended between. */
static void leader_run(void *arg)
{
	(void)arg;
	while (!t.over) {
		size_t a = world_draw(t.n_routers), b = (a + 1 + world_draw(t.n_routers - 1)) % t.n_routers;
		uint64_t began = world_now();
		bool both = leads_now(a) && leads_now(b) && leads_now(a);
		bool lost = t.lost_at != 0 && world_now() - t.lost_at < 60 * WORLD_SEC;
		if (both && !lost && world_now() - began < 2 * WORLD_SEC)
			world_fail("routers %zu and %zu lead at once", a, b);
		world_sleep(kept_between(10 * WORLD_MS, 1500 * WORLD_MS));
	}
	t.clients--;
}

/* ---- faults ---- */

static uint64_t some_time(void)
{
	return world_chance(3) ? kept_between(20 * WORLD_SEC, 150 * WORLD_SEC)
			       : kept_between(10 * WORLD_MS, 20 * WORLD_SEC);
}

static void part_again(void *arg, size_t n)
{
	(void)n;
	kept_start(arg);
	hearing_note();
}

static void kept_continue(void *arg, size_t n)
{
	(void)n;
	kept_pause(arg, false);
	hearing_note();
}

static void fault_part(struct kept_part *p)
{
	if (!p->wanted || p->paused)
		return;
	switch (world_draw(3)) {
	case 0:
		kept_kill(p);
		kept_later(some_time(), part_again, p, 0);
		break;
	case 1:
		kept_end(p);
		kept_later(some_time(), part_again, p, 0);
		break;
	default:
		kept_pause(p, true);
		kept_later(some_time(), kept_continue, p, 0);
		break;
	}
}

static struct kept_part *some_agent(void)
{
	return t.agents[world_draw(AGENTS)];
}

static void cut_end(void *arg, size_t n)
{
	size_t router = n / ETCD_MEMBERS, member = n % ETCD_MEMBERS;
	(void)arg;
	if (--t.cuts[router][member] == 0)
		world_cut(t.routers[router]->host, t.etcd_hosts[member], false);
	world_tell("router %zu and etcd %zu are joined", router, member);
	hearing_note();
}

static void router_cut(size_t router, size_t member, uint64_t time)
{
	world_tell("router %zu and etcd %zu are cut for %.1f s", router, member, (double)time / 1e9);
	world_cut(t.routers[router]->host, t.etcd_hosts[member], true);
	t.cuts[router][member]++;
	kept_later(time, cut_end, NULL, router * ETCD_MEMBERS + member);
}

/* Cut a router from one member or from all. */
static void fault_cut_router(void)
{
	size_t router = world_draw(t.n_routers), only = world_draw(t.n_etcd + 1);
	uint64_t time = some_time();
	for (size_t i = 0; i < t.n_etcd; i++)
		if (only == t.n_etcd || only == i)
			router_cut(router, i, time);
}

static void agent_join(void *arg, size_t n)
{
	struct kept_part *agent = arg;
	world_cut(agent->host, n < ETCD_MEMBERS ? t.etcd_hosts[n] : t.routers[n - ETCD_MEMBERS]->host, false);
}

/* Cut an agent from all of etcd, or from a router. */
static void fault_cut_agent(void)
{
	struct kept_part *agent = some_agent();
	size_t router = world_draw(2 * t.n_routers);
	uint64_t time = some_time();
	world_tell("%s is cut from %s %zu for %.1f s", agent->name, router < t.n_routers ? "router" : "etcd",
		router, (double)time / 1e9);
	if (router < t.n_routers) {
		world_cut(agent->host, t.routers[router]->host, true);
		kept_later(time, agent_join, agent, ETCD_MEMBERS + router);
		return;
	}
	for (size_t i = 0; i < t.n_etcd; i++) {
		world_cut(agent->host, t.etcd_hosts[i], true);
		kept_later(time, agent_join, agent, i);
	}
}

static void etcd_heal(void *arg, size_t n)
{
	(void)arg;
	model_etcd_start(t.etcd, n);
	model_etcd_pause(t.etcd, n, false);
	model_etcd_isolate(t.etcd, n, false);
	model_etcd_slow(t.etcd, n, 0);
	if (t.loses)
		t.lost_at = world_now();
	hearing_note();
}

static void fault_member(void)
{
	size_t i = world_draw(t.n_etcd);
	switch (world_draw(5)) {
	case 0:
		model_etcd_kill(t.etcd, i);
		break;
	case 1:
		model_etcd_pause(t.etcd, i, true);
		break;
	case 2:
		model_etcd_isolate(t.etcd, i, true);
		break;
	case 3:
		model_etcd_slow(t.etcd, i,
			world_chance(2) ? kept_between(3 * WORLD_SEC, 4900 * WORLD_MS)
					: kept_between(WORLD_MS, 3 * WORLD_SEC));
		break;
	default:
		model_etcd_end_watches(t.etcd, i);
		return;
	}
	kept_later(some_time(), etcd_heal, NULL, i);
}

/* Other users of this etcd write: its revision grows. */
static void fault_others(void)
{
	for (uint64_t n = kept_between(1, 60); n > 0; n--)
		model_etcd_put(t.etcd, "/other/key", "x");
}

static void others_later(void *arg, size_t n)
{
	(void)arg;
	(void)n;
	fault_others();
}

static void etcd_loses(void)
{
	t.loses = true;
	t.losses++;
	for (size_t i = 0; i < AGENTS; i++)
		t.cordons[i] = CORDON_EITHER;
}

/* All of etcd ends; it starts again with all it had, with nothing, or with what it had earlier. */
static void fault_etcd(void)
{
	for (size_t i = 0; i < t.n_etcd; i++)
		model_etcd_kill(t.etcd, i);
	switch (world_draw(4)) {
	case 0:
		model_etcd_wipe(t.etcd, world_chance(2));
		etcd_loses();
		break;
	case 1:
		model_etcd_restore(t.etcd);
		etcd_loses();
		break;
	default:
		break;
	}
	for (size_t i = 0; i < t.n_etcd; i++)
		kept_later(some_time(), etcd_heal, NULL, i);
	if (world_chance(2))
		kept_later(some_time(), others_later, NULL, 0);
}

static void fault_lease(void)
{
	char key[80];
	node_key(key, sizeof key, world_draw(AGENTS));
	model_etcd_lose(t.etcd, key);
}

/* A process that asks a router for a cordon by gRPC, as cgn-ctl does; it ends with 0 when the router has confirmed. */
static struct order {
	struct cgn_loop *loop;
	enum cgn_code code;
} order;

static void on_order_done(void *user, const struct grpc_unary_result *r)
{
	(void)user;
	order.code = r->err->code;
	cgn_loop_stop(order.loop);
}

static int order_main(int argc, char **argv)
{
	Cognitora__V1__CordonRequest m = COGNITORA__V1__CORDON_REQUEST__INIT;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	struct grpc_channel *channel;
	struct cgn_err err;
	const struct grpc_channel_cfg cfg = {.addr = argv[1]};
	if (argc != 4)
		return 2;
	order.code = CGN_INTERNAL;
	m.node_id = argv[2];
	pb_pack(&m, &b);
	if (!cgn_ok(cgn_loop_new(&order.loop, &err)) ||
		!cgn_ok(grpc_channel_new(order.loop, &cfg, &channel, &err)) ||
		!cgn_ok(grpc_unary(channel, argv[3], cgn_buf_view(&b), 20 * CGN_SEC, on_order_done, NULL,
			&err)))
		world_fail("the order of a cordon cannot be sent: %s", err.msg);
	cgn_loop_run(order.loop);
	return order.code == CGN_FINE ? 0 : order.code == CGN_NOT_FOUND ? 3 : 1;
}

static void cordon_change(void)
{
	char address[40];
	size_t agent = world_draw(AGENTS), router = world_draw(t.n_routers);
	bool on = world_chance(2);
	t.cordons[agent] = CORDON_EITHER;
	(void)snprintf(address, sizeof address, "%s:9090", world_host_address(t.routers[router]->host));
	const char *const argv[] = {"order", address, agent_name(agent),
		on ? "/cognitora.v1.Control/Cordon" : "/cognitora.v1.Control/Uncordon", NULL};
	unsigned losses = t.losses;
	struct world_proc *p = world_start(t.orders, "order", order_main, argv);
	while (world_alive(p))
		world_sleep(10 * WORLD_MS);
	world_tell("node %s is to be %s by router %zu: %s", agent_name(agent), on ? "cordoned" : "uncordoned",
		router, world_status(p) == 0 ? "done" : "not done");
	t.vague[agent] = t.vague[agent] || world_status(p) != 0; /* The order may take effect at any time. */
	if (!t.vague[agent] && t.losses == losses)
		t.cordons[agent] = on ? CORDON_YES : CORDON_NO;
}

/* etcd loses its data, and is beyond its old revision when a router that was cut off asks again. */
static void fault_reset(void)
{
	size_t router = world_draw(t.n_routers);
	struct kept_part *agent = some_agent();
	cordon_change();
	world_sleep(WORLD_SEC);
	for (size_t i = 0; i < t.n_etcd; i++)
		router_cut(router, i, kept_between(20 * WORLD_SEC, 60 * WORLD_SEC));
	for (size_t i = 0; i < t.n_etcd; i++)
		model_etcd_kill(t.etcd, i);
	if (world_chance(2))
		model_etcd_wipe(t.etcd, false);
	else
		model_etcd_restore(t.etcd);
	etcd_loses();
	if (agent->wanted && !agent->paused) {
		kept_kill(agent);
		kept_later(kept_between(WORLD_SEC, 150 * WORLD_SEC), part_again, agent, 0);
	}
	for (size_t i = 0; i < t.n_etcd; i++)
		etcd_heal(NULL, i);
	kept_later(kept_between(WORLD_SEC, 20 * WORLD_SEC), others_later, NULL, 0);
}

static void fault_clock(void)
{
	struct world_host *h =
		world_chance(2) ? some_agent()->host : t.routers[world_draw(t.n_routers)]->host;
	world_wall_jump(h, (int64_t)kept_between(0, 7200 * WORLD_SEC) - (int64_t)(3600 * WORLD_SEC));
}

static void fault_one(void)
{
	switch (world_draw(14)) {
	case 0:
	case 1:
		fault_part(some_agent());
		break;
	case 2:
		fault_part(t.routers[world_draw(t.n_routers)]);
		break;
	case 3:
		fault_cut_router();
		break;
	case 4:
		fault_cut_agent();
		break;
	case 5:
	case 6:
		fault_member();
		break;
	case 7:
		fault_etcd();
		break;
	case 8:
		fault_lease();
		break;
	case 9:
		cordon_change();
		if (world_chance(2))
			cordon_change();
		break;
	case 10:
		model_etcd_compact(t.etcd, (int64_t)world_draw(20));
		break;
	case 11:
		fault_others();
		break;
	case 12:
		fault_reset();
		break;
	default:
		if (world_chance(2))
			model_etcd_save(t.etcd);
		else
			fault_clock();
		break;
	}
	hearing_note();
}

/* ---- at rest ---- */

/* Return the text of a node in the document of nodes; NULL: it has none. */
static const char *node_text(const struct http_got *got, const char *id)
{
	char key[32];
	(void)snprintf(key, sizeof key, "{\"id\":\"%s\"", id);
	return strstr(got->body.p, key);
}

static void check_router(size_t i)
{
	struct http_got got;
	if (kept_ask(t.routers[i], 9091, "GET", "/nodes", "", &got) != 200)
		world_fail("router %zu does not tell its nodes", i);
	if (!document_says(got.body.p, "state_connected", "true") ||
		!document_says(got.body.p, "state_stale", "false"))
		world_fail("router %zu has not heard etcd: %.200s", i, got.body.p);
	for (size_t k = 0; k < AGENTS; k++) {
		char key[80];
		(void)snprintf(key, sizeof key, PREFIX "cordon/%s", agent_name(k));
		const char *node = node_text(&got, agent_name(k));
		bool cordoned = model_etcd_value(t.etcd, key) != NULL;
		if (!document_says(node, "state", cordoned ? "\"cordoned\"" : "\"ready\""))
			world_fail("router %zu: node %s is not %s: %.300s", i, agent_name(k),
				cordoned ? "cordoned" : "ready", node != NULL ? node : "unknown");
	}
	http_got_fini(&got);
}

static void check_answers(size_t router)
{
	bool any = false;
	for (size_t k = 0; k < AGENTS; k++) {
		static const char *const models[AGENTS] = {"m-a", "m-b", "m-c"};
		struct question q = {.router = router, .model = models[k]};
		char key[80];
		(void)snprintf(key, sizeof key, PREFIX "cordon/%s", agent_name(k));
		bool cordoned = model_etcd_value(t.etcd, key) != NULL;
		int status = question_ask(&q);
		any = any || !cordoned;
		if (status != (cordoned ? 503 : 200))
			world_fail("router %zu says %d for model %s at rest", router, status, q.model);
	}
	struct question all = {.router = router, .model = "m"}, none = {.router = router, .model = "nope"};
	int status = question_ask(&all);
	if (status != (any ? 200 : 503))
		world_fail("router %zu says %d for model m at rest", router, status);
	status = question_ask(&none);
	if (status != 404)
		world_fail("router %zu says %d for an unknown model at rest", router, status);
}

static void check_cordons(void)
{
	for (size_t i = 0; i < AGENTS; i++) {
		char key[80];
		(void)snprintf(key, sizeof key, PREFIX "cordon/%s", agent_name(i));
		bool is = model_etcd_value(t.etcd, key) != NULL;
		if (t.cordons[i] != CORDON_EITHER && is != (t.cordons[i] == CORDON_YES))
			world_fail("the cordon of node %s is %s", agent_name(i), is ? "still there" : "lost");
	}
}

static void check_end(void)
{
	for (size_t i = 0; i < AGENTS; i++)
		kept_end(t.agents[i]);
	world_sleep(5 * WORLD_SEC);
	if (model_etcd_count(t.etcd, PREFIX "nodes/") != 0)
		world_fail("nodes that left are still registered");
	for (size_t i = 0; i < t.n_routers; i++)
		kept_end(t.routers[i]);
}

void scenario_members(void *arg)
{
	(void)arg;
	cluster_make();
	world_sleep(kept_between(0, 10 * WORLD_SEC));
	for (t.clients = 0; t.clients < 3; t.clients++)
		world_spawn(client_run, NULL);
	t.clients++;
	world_spawn(leader_run, NULL);
	for (uint64_t n = kept_between(1, 14); n > 0; n--) {
		fault_one();
		world_sleep(kept_between(0, world_chance(3) ? 40 * WORLD_SEC : 4 * WORLD_SEC));
		kept_watch_parts();
	}
	kept_settle();
	world_tell("no further fault");
	world_sleep(CONVERGE);
	t.over = true;
	while (t.clients > 0)
		world_sleep(100 * WORLD_MS);
	kept_watch_parts();
	for (size_t i = 0; i < t.n_routers; i++)
		check_router(i);
	check_cordons();
	for (size_t i = 0; i < t.n_routers; i++)
		check_answers(i);
	check_end();
	world_tell("answered %u, refused %u, unknown %u", t.answered, t.refused, t.unknown);
}
