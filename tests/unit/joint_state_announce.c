/* SPDX-License-Identifier: Apache-2.0 */
/* Agents and block stores at a router: registration, its renewal and end, and the stores of the cluster. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "base/pb/pb.h"
#include "io/wire/grpc/grpc.h"
#include "joint/cluster/state/state.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"
#include "state_told.h"
#include "telemetry_world.h"

struct world {
	struct cgn_loop *l;
	struct cgn_timer tick; /* Ends a turn soon even when nothing arrives. */
	struct config *cfg;
	struct grpc_server *server;
	char addr[64];
	/* The router answers as these say and counts who asked. */
	enum cgn_code refuse; /* CGN_FINE: it answers */
	bool mute;            /* Leaves have no answer. */
	uint64_t lease_ms;
	unsigned announced, left;
	char id[64], address[64];
	struct {
		const char *id, *address;
	} stores[4]; /* Up to the first without an id. */
	/* The agent and the store note the events that they get here. */
	struct cgn_buf told;
	unsigned done;
};

/* ---- a router ---- */

static void reply_send(struct grpc_call *c, const void *message)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {.n = 0};
	pb_pack(message, &b);
	grpc_send(c, &(struct iovec){b.p, b.n}, b.n > 0);
	grpc_finish(c, CGN_FINE, NULL);
}

static void on_announce(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	Cognitora__V1__AnnounceRequest *rq = NULL;
	Cognitora__V1__AnnounceResponse rs = COGNITORA__V1__ANNOUNCE_RESPONSE__INIT;
	assert_true(cgn_ok(pb_unpack(&cognitora__v1__announce_request__descriptor,
		(struct cgn_str){(const char *)p, n}, &rq, NULL)));
	assert_string_equal(rq->cluster, "cognitora");
	(void)cgn_str_copyz(w->id, sizeof w->id, cgn_str_of(rq->node->id));
	(void)cgn_str_copyz(w->address, sizeof w->address, cgn_str_of(rq->node->address));
	pb_free(&rq);
	w->announced++;
	rs.lease_ms = w->lease_ms;
	if (w->refuse != CGN_FINE)
		grpc_finish(c, w->refuse, "not now");
	else
		reply_send(c, &rs);
}

static void on_leave(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	Cognitora__V1__LeaveRequest *rq = NULL;
	Cognitora__V1__LeaveResponse rs = COGNITORA__V1__LEAVE_RESPONSE__INIT;
	assert_true(cgn_ok(pb_unpack(&cognitora__v1__leave_request__descriptor,
		(struct cgn_str){(const char *)p, n}, &rq, NULL)));
	assert_string_equal(rq->node_id, w->id);
	pb_free(&rq);
	w->left++;
	if (!w->mute)
		reply_send(c, &rs);
}

static void on_stores(struct grpc_call *c, void *user, const uint8_t *p, size_t n)
{
	struct world *w = user;
	Cognitora__V1__StoresResponse rs = COGNITORA__V1__STORES_RESPONSE__INIT;
	Cognitora__V1__NodeStore store[4], *all[4];
	Cognitora__V1__KvStore kv[4];
	(void)p;
	(void)n;
	if (w->refuse != CGN_FINE) {
		grpc_finish(c, w->refuse, "not now");
		return;
	}
	for (; rs.n_stores < 4 && w->stores[rs.n_stores].id != NULL; rs.n_stores++) {
		size_t i = rs.n_stores;
		cognitora__v1__node_store__init(&store[i]);
		cognitora__v1__kv_store__init(&kv[i]);
		store[i].node_id = (char *)(uintptr_t)w->stores[i].id;
		kv[i].quic_address = (char *)(uintptr_t)w->stores[i].address;
		store[i].kv = &kv[i];
		all[i] = &store[i];
	}
	rs.stores = all;
	reply_send(c, &rs);
}

static void on_half_close(struct grpc_call *c, void *user)
{
	(void)c;
	(void)user;
}

static void on_close(struct grpc_call *c, void *user, const struct cgn_err *why)
{
	(void)c;
	(void)user;
	(void)why;
}

#define CALL(name)                                                                \
	static void name##_call(struct grpc_call *c, void *user)                  \
	{                                                                         \
		static const struct grpc_call_ops ops = {.on_message = on_##name, \
			.on_half_close = on_half_close,                           \
			.on_close = on_close};                                    \
		grpc_call_take(c, &ops, user);                                    \
	}
CALL(announce)
CALL(leave)
CALL(stores)

static void router_start(struct world *w)
{
	static const struct grpc_method methods[] = {{PROTO_ROUTER_ANNOUNCE, announce_call},
		{PROTO_ROUTER_LEAVE, leave_call}, {PROTO_ROUTER_STORES, stores_call}};
	struct cgn_err err;
	const struct grpc_server_cfg cfg = {.listen = {.addr = w->addr},
		.methods = methods,
		.n_methods = CGN_COUNT(methods),
		.health = true};
	if (!cgn_ok(grpc_server_new(w->l, &cfg, w, &w->server, &err)))
		fail_msg("%s", err.msg);
	(void)snprintf(w->addr, sizeof w->addr, "127.0.0.1:%u", grpc_server_port(w->server));
}

/* ---- the world ---- */

static int world_setup(void **state)
{
	struct world *w = calloc(1, sizeof *w);
	assert_non_null(w);
	assert_true(cgn_ok(cgn_loop_new(&w->l, NULL)));
	cgn_timer_init(&w->tick, w->l, world_tick);
	cgn_timer_set(&w->tick, 1);
	w->lease_ms = 300000;
	(void)cgn_str_copyz(w->addr, sizeof w->addr, CGN_STR("127.0.0.1:0"));
	router_start(w);
	*state = w;
	return 0;
}

static int world_teardown(void **state)
{
	struct world *w = *state;
	grpc_server_free(&w->server);
	cgn_timer_cancel(&w->tick);
	cgn_loop_free(&w->l);
	config_free(&w->cfg);
	cgn_buf_fini(&w->told);
	free(w);
	return 0;
}

static void world_config(struct world *w, const char *heartbeat)
{
	struct cgn_err err;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	cgn_buf_fmt(&text, "[cluster]\nrouter = \"%s\"\nlease = \"5m\"\n[agent]\nheartbeat = \"%s\"\n",
		w->addr, heartbeat);
	config_free(&w->cfg); /* A test may configure a second agent. */
	if (!cgn_ok(settings_load("test.toml", cgn_buf_view(&text), NULL, NULL, 0, &w->cfg, &err)))
		fail_msg("%s", err.msg);
}

static void on_connected(void *user, bool connected, const char *why)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, connected ? "up%s " : "down: %s; ", why);
}

static const struct state_announce_ops announce_ops = {on_connected};

static struct state_announce *agent_start(struct world *w, const char *heartbeat)
{
	struct state_announce *a = NULL;
	struct cgn_err err;
	world_config(w, heartbeat);
	if (!cgn_ok(state_announce_open(w->l, w->cfg, test_telemetry(), &announce_ops, w, &a, &err)))
		fail_msg("%s", err.msg);
	return a;
}

static void agent_says(struct state_announce *a, const char *address)
{
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	n.id = (char[]){"n1"};
	n.address = (char *)(uintptr_t)address;
	state_announce_update(a, &n);
}

static void on_left(void *arg)
{
	((struct world *)arg)->done++;
}

static double shown_connected(const char *what)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf page = {.n = 0};
	char line[80];
	(void)snprintf(line, sizeof line, "cgn_state_connected{what=\"%s\"} ", what);
	telemetry_text(test_telemetry(), &page);
	const char *at = strstr(cgn_buf_z(&page), line);
	return at != NULL ? strtod(at + strlen(line), NULL) : -1;
}

/* ---- agents ---- */

static void a_node_registers_tells_its_changes_and_leaves(void **state)
{
	struct world *w = *state;
	struct state_announce *a = agent_start(w, "1m");
	agent_says(a, "h:1");
	until(w, was_told(&w->told, "up "));
	assert_string_equal(w->id, "n1");
	assert_string_equal(w->address, "h:1");
	assert_true(shown_connected("registration") > 0);
	agent_says(a, "h:2"); /* Told at once, not with the next heartbeat. */
	until(w, strcmp(w->address, "h:2") == 0);
	agent_says(a, "h:3");
	agent_says(a, "h:4");
	until(w, strcmp(w->address, "h:4") == 0);
	state_announce_leave(a, on_left, w);
	assert_int_equal(w->done, 0); /* Never inline. */
	until(w, w->done == 1);
	assert_int_equal(w->left, 1);
	unsigned announced = w->announced;
	agent_says(a, "h:5"); /* Ignored: it left. */
	for (unsigned i = 0; i < 50; i++)
		(void)uv_run(cgn_loop_uv(w->l), UV_RUN_ONCE);
	assert_int_equal(w->announced, announced);
	assert_int_equal(w->done, 1);
	assert_string_equal(cgn_buf_z(&w->told), "up ");
	state_announce_close(&a);
}

static void a_change_during_an_announcement_is_told_after_it(void **state)
{
	struct world *w = *state;
	struct state_announce *a = agent_start(w, "1m");
	agent_says(a, "h:1");
	until(w, w->announced == 1); /* The answer is on the way. */
	agent_says(a, "h:2");
	until(w, strcmp(w->address, "h:2") == 0);
	until(w, was_told(&w->told, "up "));
	assert_int_equal(w->announced, 2);
	state_announce_close(&a);
}

static void the_same_node_is_announced_only_to_renew_it(void **state)
{
	struct world *w = *state;
	struct state_announce *a = agent_start(w, "1m");
	agent_says(a, "h:1");
	until(w, was_told(&w->told, "up "));
	agent_says(a, "h:1");
	for (unsigned i = 0; i < 50; i++)
		(void)uv_run(cgn_loop_uv(w->l), UV_RUN_ONCE);
	assert_int_equal(w->announced, 1);
	state_announce_close(&a);
	a = agent_start(w, "50ms");
	agent_says(a, "h:1");
	until(w, w->announced >= 5); /* Each heartbeat. */
	state_announce_close(&a);
}

static void a_router_with_a_short_lease_is_told_more_often(void **state)
{
	struct world *w = *state;
	struct state_announce *a = agent_start(w, "1m");
	w->lease_ms = 90;
	agent_says(a, "h:1");
	until(w, w->announced >= 4);
	state_announce_close(&a);
}

static void an_outage_is_told_once_and_ends(void **state)
{
	struct world *w = *state;
	struct state_announce *a = agent_start(w, "1m");
	w->refuse = CGN_UNAVAILABLE;
	agent_says(a, "h:1");
	until(w, w->announced == 3); /* The agent tries again, sooner than a heartbeat. */
	assert_true(was_told(&w->told, "down: not now; "));
	assert_true(shown_connected("registration") < 1);
	w->refuse = CGN_FINE;
	until(w, was_told(&w->told, "up "));
	assert_string_equal(cgn_buf_z(&w->told), "down: not now; up ");
	state_announce_close(&a);
}

/* The stream of the router's health ends: that is how an agent learns of a restart before its next heartbeat. */
static void a_restarted_router_is_told_at_once(void **state)
{
	struct world *w = *state;
	struct state_announce *a = agent_start(w, "1m");
	agent_says(a, "h:1");
	until(w, was_told(&w->told, "up "));
	for (unsigned i = 0; i < 20; i++) /* The stream stands. */
		(void)uv_run(cgn_loop_uv(w->l), UV_RUN_ONCE);
	grpc_server_free(&w->server);
	w->announced = 0;
	router_start(w);
	until(w, w->announced > 0);
	state_announce_close(&a);
}

static void a_refused_agent_does_not_take_the_owner_away(void **state)
{
	struct world *w = *state;
	struct state_announce *a = agent_start(w, "1m");
	w->refuse = CGN_CONFLICT;
	agent_says(a, "h:1");
	until(w, was_told(&w->told, "down"));
	state_announce_leave(a, on_left, w);
	until(w, w->done == 1);
	assert_int_equal(w->left, 0);
	state_announce_close(&a);
}

static void leaving_ends_without_an_answer(void **state)
{
	struct world *w = *state;
	struct state_announce *a = agent_start(w, "1m");
	w->mute = true;
	agent_says(a, "h:1");
	until(w, was_told(&w->told, "up "));
	state_announce_leave(a, on_left, w);
	until(w, w->done == 1); /* The bound is 2 s. */
	state_announce_close(&a);
	a = agent_start(w, "1m"); /* Nothing was announced. */
	state_announce_leave(a, on_left, w);
	until(w, w->done == 2);
	assert_int_equal(w->left, 1);
	state_announce_close(&a);
}

/* ---- stores ---- */

static void on_store(void *user, const struct state_store *s)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "+%s@%s ", s->node_id, s->address);
}

static void on_store_gone(void *user, const char *id)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "-%s ", id);
}

static const struct state_stores_ops stores_ops = {on_store, on_store_gone};

static void stores_come_change_and_go(void **state)
{
	struct world *w = *state;
	struct state_stores *s = NULL;
	world_config(w, "100ms");
	w->stores[0].id = "n1";
	w->stores[0].address = "h:1";
	w->stores[1].id = "n/2"; /* Not sound: passed over. */
	w->stores[1].address = "h:2";
	w->stores[2].id = "n3";
	w->stores[2].address = "h:3";
	assert_true(cgn_ok(state_stores_open(w->l, w->cfg, test_telemetry(), &stores_ops, w, &s, NULL)));
	until(w, was_told(&w->told, "+n3@h:3 "));
	assert_true(shown_connected("stores") > 0);
	w->stores[2].address = "h:4";
	until(w, was_told(&w->told, "+n3@h:4 "));
	w->refuse = CGN_UNAVAILABLE; /* The last known stores stay. */
	until(w, shown_connected("stores") < 1);
	w->stores[2].id = NULL;
	w->refuse = CGN_FINE;
	until(w, was_told(&w->told, "-n3 "));
	assert_true(shown_connected("stores") > 0);
	assert_string_equal(cgn_buf_z(&w->told), "+n1@h:1 +n3@h:3 +n3@h:4 -n3 ");
	state_stores_close(&s);
}

/* ---- this node's name and address ---- */

static void an_address_is_made_of_what_is_configured(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	char out[128];
	world_config(w, "1m");
	assert_true(cgn_ok(state_advertised(w->cfg, "me:9", "0.0.0.0:1", 2, "k", out, sizeof out, &err)));
	assert_string_equal(out, "me:9");
	assert_true(cgn_ok(state_advertised(w->cfg, NULL, "10.1.2.3:0", 2, "k", out, sizeof out, &err)));
	assert_string_equal(out, "10.1.2.3:2");
	assert_true(cgn_ok(state_advertised(w->cfg, NULL, "[fd00::1]:0", 2, "k", out, sizeof out, &err)));
	assert_string_equal(out, "[fd00::1]:2");
	assert_true(cgn_ok(state_advertised(w->cfg, NULL, "unix:/run/x", 2, "k", out, sizeof out, &err)));
	assert_string_equal(out, "unix:/run/x");
	static const char *const any[] = {"0.0.0.0:0", "[::]:0", "*:0", ":0"};
	for (size_t i = 0; i < CGN_COUNT(any); i++) { /* The source of the route to the router. */
		assert_true(cgn_ok(state_advertised(w->cfg, NULL, any[i], 77, "k", out, sizeof out, &err)));
		assert_string_equal(out, "127.0.0.1:77");
	}
}

static void a_node_without_an_id_has_its_hosts_name(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	char out[PROTO_MAX_ID + 1], host[256] = "";
	world_config(w, "1m");
	assert_int_equal(gethostname(host, sizeof host - 1), 0);
	if (cgn_ok(state_node_id(w->cfg, out, sizeof out, &err)))
		assert_string_equal(out, host);
	else
		assert_non_null(strstr(err.msg, "agent.node_id"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_node_registers_tells_its_changes_and_leaves),
		TEST(a_change_during_an_announcement_is_told_after_it),
		TEST(the_same_node_is_announced_only_to_renew_it),
		TEST(a_router_with_a_short_lease_is_told_more_often),
		TEST(an_outage_is_told_once_and_ends),
		TEST(a_restarted_router_is_told_at_once),
		TEST(a_refused_agent_does_not_take_the_owner_away),
		TEST(leaving_ends_without_an_answer),
		TEST(stores_come_change_and_go),
		TEST(an_address_is_made_of_what_is_configured),
		TEST(a_node_without_an_id_has_its_hosts_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
