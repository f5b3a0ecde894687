/* SPDX-License-Identifier: Apache-2.0 */
/* Membership without etcd: the events that routers receive, and the state that survives a restart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/core/buf.h"
#include "joint/cluster/state/state.h"
#include "joint/cluster/state/state_priv.h"
#include "policy/config/config.h"
#include "policy/fleet/settings/settings.h"
#include "telemetry_world.h"

#define PATIENCE (20 * CGN_SEC)

struct world {
	struct cgn_loop *loop;
	struct config *cfg;
	struct state_watch *s;
	struct cgn_buf told; /* Events that the router received, in order. */
	struct cgn_timer limit;
	const char *until; /* The loop stops when |told| ends with this text. */
	char dir[64];
};

static void watch_check(struct world *w)
{
	size_t n = w->until != NULL ? strlen(w->until) : 0;
	if (n > 0 && w->told.n >= n && memcmp(w->told.p + w->told.n - n, w->until, n) == 0)
		cgn_loop_stop(w->loop);
}

static void on_node(void *user, const Cognitora__V1__Node *node)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "+%s@%s ", node->id, node->address);
	watch_check(w);
}

static void on_gone(void *user, const char *id)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "-%s ", id);
	watch_check(w);
}

static void on_cordon(void *user, const char *id, bool on)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "%s:%s ", on ? "cordon" : "uncordon", id);
	watch_check(w);
}

static void on_connected(void *user, bool connected, const char *why)
{
	struct world *w = user;
	(void)why;
	cgn_buf_putz(&w->told, connected ? "up " : "down ");
	watch_check(w);
}

static void on_policy(void *user, struct cgn_str text, const char *where)
{
	struct world *w = user;
	assert_non_null(strstr(where, "/state/cognitora.policy"));
	cgn_buf_fmt(&w->told, "policy:%.*s ", CGN_STR_ARG(text));
	watch_check(w);
}

static const struct state_watch_ops ops = {on_node, on_gone, on_cordon, on_connected, on_policy};

static void too_late(struct cgn_timer *t)
{
	struct world *w = CGN_CONTAINER(t, struct world, limit);
	fail_msg("waited for \"%s\", heard \"%s\"", w->until, cgn_buf_z(&w->told));
}

/* Open a world. A loop runs once, so each wait has a loop of its own, and the state with it. */
static void open_world(struct world *w, const char *toml)
{
	struct cgn_err err;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
	cgn_buf_fmt(&text,
		"[cluster]\nstate_dir = \"%s/state\"\nlease = \"1s\"\n%s[agent]\nheartbeat = \"300ms\"\n",
		w->dir, toml);
	if (!cgn_ok(settings_load("test.toml", cgn_buf_view(&text), NULL, NULL, 0, &w->cfg, &err)))
		fail_msg("%s", err.msg);
	assert_true(cgn_ok(cgn_loop_new(&w->loop, &err)));
	cgn_timer_init(&w->limit, w->loop, too_late);
}

static void close_world(struct world *w)
{
	state_watch_close(&w->s);
	cgn_timer_cancel(&w->limit);
	cgn_loop_free(&w->loop);
	config_free(&w->cfg);
	cgn_buf_fini(&w->told);
}

static enum cgn_code state_begin(struct world *w, const char *toml, struct cgn_err *err)
{
	open_world(w, toml);
	return state_watch_open(w->loop, w->cfg, test_telemetry(), &ops, w, &w->s, err).code;
}

static void wait_for(struct world *w, const char *until)
{
	w->until = until;
	cgn_timer_set(&w->limit, PATIENCE);
	cgn_loop_run(w->loop);
	cgn_timer_cancel(&w->limit);
}

static Cognitora__V1__AnnounceRequest announce_of(Cognitora__V1__Node *n, const char *id, const char *address)
{
	static char id_text[300], address_text[300], cluster[] = "cognitora";
	Cognitora__V1__AnnounceRequest rq = COGNITORA__V1__ANNOUNCE_REQUEST__INIT;
	cognitora__v1__node__init(n);
	(void)cgn_str_copyz(id_text, sizeof id_text, cgn_str_of(id));
	(void)cgn_str_copyz(address_text, sizeof address_text, cgn_str_of(address));
	n->id = id_text;
	n->address = address_text;
	rq.cluster = cluster;
	rq.node = n;
	return rq;
}

static enum cgn_code node_announce(struct world *w, const char *id, const char *address, struct cgn_err *err)
{
	Cognitora__V1__Node n;
	uint64_t lease_ms = 0;
	Cognitora__V1__AnnounceRequest rq = announce_of(&n, id, address);
	cgn_rc rc = state_announce_received(w->s, &rq, &lease_ms, err);
	if (cgn_ok(rc))
		assert_int_equal(lease_ms, 1000);
	return rc.code;
}

static void cordon_done(void *user, const struct cgn_err *err)
{
	struct world *w = user;
	cgn_buf_fmt(&w->told, "done:%s ", cgn_code_name(err->code));
	watch_check(w);
}

static int world_setup(void **state)
{
	struct world *w = calloc(1, sizeof *w);
	assert_non_null(w);
	(void)snprintf(w->dir, sizeof w->dir, "/tmp/cgn-state-XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	*state = w;
	return 0;
}

static int world_teardown(void **state)
{
	struct world *w = *state;
	char path[128];
	static const char *const left[] = {"state/cognitora.cordons", "state/cognitora.policy",
		"state/cognitora.members", "state/cognitora.lock", "state", "", "x"};
	for (size_t i = 0; i < CGN_COUNT(left); i++) {
		(void)snprintf(path, sizeof path, "%s/%s", w->dir, left[i]);
		(void)remove(path);
	}
	free(w);
	return 0;
}

static void nodes_come_change_leave_and_time_out(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_int_equal(node_announce(w, "n1", "h:1", &err), CGN_FINE);
	assert_int_equal(node_announce(w, "n1", "h:1", &err), CGN_FINE); /* A heartbeat changes nothing. */
	assert_int_equal(node_announce(w, "n2", "h:3", &err), CGN_FINE);
	assert_string_equal(cgn_buf_z(&w->told), "+n1@h:1 +n2@h:3 ");
	assert_true(cgn_ok(state_leave_received(w->s, "n1", &err)));
	assert_true(cgn_ok(state_leave_received(w->s, "n1", &err)));
	wait_for(w, "-n2 "); /* Silent for the length of the lease. */
	assert_string_equal(cgn_buf_z(&w->told), "+n1@h:1 +n2@h:3 -n1 up -n2 ");
	close_world(w);
}

static cgn_nsec lease_end_move(struct world *w, const char *id, cgn_nsec by)
{
	struct roster_entry *e = roster_find(&w->s->nodes, id);
	assert_non_null(e);
	e->lease_end += by;
	return state_leases_check(w->s);
}

static void the_lease_that_ends_first_is_looked_at_first(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_int_equal(node_announce(w, "n1", "h:1", &err), CGN_FINE);
	assert_int_equal(node_announce(w, "n2", "h:2", &err), CGN_FINE);
	cgn_nsec next = state_leases_check(w->s);
	assert_in_range(next, 1, CGN_SEC);
	assert_true(lease_end_move(w, "n1", 5 * CGN_SEC) == next);
	assert_true(lease_end_move(w, "n2", 9 * CGN_SEC) == next + 5 * CGN_SEC);
	assert_true(lease_end_move(w, "n1", 7 * CGN_SEC) == next + 9 * CGN_SEC);
	close_world(w);
}

static void an_id_belongs_to_one_address_until_the_lease_ends(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_int_equal(node_announce(w, "n1", "h:1", &err), CGN_FINE);
	assert_int_equal(node_announce(w, "n1", "h:2", &err), CGN_CONFLICT);
	assert_non_null(strstr(err.msg, "\"n1\""));
	assert_non_null(strstr(err.msg, "h:1"));
	assert_int_equal(node_announce(w, "n1", "h:1", &err), CGN_FINE); /* An agent that was restarted. */
	assert_true(cgn_ok(state_leave_received(w->s, "n1", &err)));
	assert_int_equal(node_announce(w, "n1", "h:2", &err), CGN_FINE);
	assert_int_equal(node_announce(w, "n1", "h:1", &err), CGN_CONFLICT);
	wait_for(w, "up -n1 "); /* Silent for the length of the lease. */
	assert_int_equal(node_announce(w, "n1", "h:1", &err), CGN_FINE);
	close_world(w);
}

static void unsound_nodes_are_refused_with_a_reason(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	Cognitora__V1__Node n;
	uint64_t lease_ms;
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_int_equal(node_announce(w, "a/b", "h:1", &err), CGN_INVALID);
	assert_int_equal(node_announce(w, "a", "nowhere", &err), CGN_INVALID);
	assert_non_null(strstr(err.msg, "host:port"));
	Cognitora__V1__AnnounceRequest rq = announce_of(&n, "n1", "h:1");
	rq.cluster = (char[]){"other"};
	assert_int_equal(state_announce_received(w->s, &rq, &lease_ms, &err).code, CGN_INVALID);
	assert_non_null(strstr(err.msg, "other"));
	rq = announce_of(&n, "n1", "h:1");
	rq.node = NULL;
	assert_int_equal(state_announce_received(w->s, &rq, &lease_ms, &err).code, CGN_INVALID);
	assert_int_equal(w->told.n, 0);
	close_world(w);
}

static void there_is_a_bound_on_nodes(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	char id[16];
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	for (unsigned i = 0; i < STATE_MAX_NODES; i++) {
		(void)snprintf(id, sizeof id, "n%u", i);
		assert_int_equal(node_announce(w, id, "h:1", &err), CGN_FINE);
	}
	assert_int_equal(node_announce(w, "one-more", "h:1", &err), CGN_OVERLOADED);
	assert_int_equal(node_announce(w, "n7", "h:1", &err), CGN_FINE);
	close_world(w);
}

static void cordons_survive_a_restart(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_true(cgn_ok(state_cordon(w->s, "n1", true, cordon_done, w, &err)));
	assert_true(cgn_ok(state_cordon(w->s, "n2", true, cordon_done, w, &err)));
	/* A second cordon succeeds. */
	assert_true(cgn_ok(state_cordon(w->s, "n2", true, cordon_done, w, &err)));
	assert_true(cgn_ok(state_cordon(w->s, "n1", false, cordon_done, w, &err)));
	assert_null(strstr(cgn_buf_z(&w->told), "done"));
	/* The first one is written at once, and the others together. */
	wait_for(w, "cordon:n2 uncordon:n1 done:FINE done:FINE done:FINE ");
	assert_non_null(strstr(cgn_buf_z(&w->told), "cordon:n1 "));
	assert_true(state_watch_cordoned(w->s, "n2"));
	assert_false(state_watch_cordoned(w->s, "n1"));
	close_world(w);

	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_true(state_watch_cordoned(w->s, "n2"));
	wait_for(w, "up ");
	assert_string_equal(cgn_buf_z(&w->told), "cordon:n2 up ");
	close_world(w);
}

static void a_cordon_that_can_not_be_kept_is_refused(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	char path[128];
	(void)snprintf(path, sizeof path, "%s/state", w->dir);
	FILE *f = fopen(path, "w"); /* A file where the folder should be. */
	assert_non_null(f);
	(void)fclose(f);
	assert_int_equal(state_begin(w, "", &err), CGN_FINE); /* With a warning. */
	wait_for(w, "up ");
	assert_true(cgn_ok(state_cordon(w->s, "n1", true, cordon_done, w, &err)));
	wait_for(w, "done:STORAGE ");
	assert_false(state_watch_cordoned(w->s, "n1"));
	assert_int_equal(state_cordon(w->s, "a/../b", true, cordon_done, w, &err).code, CGN_INVALID);
	assert_true(cgn_ok(state_cordon(w->s, "n2", false, cordon_done, w, &err)));
	state_watch_close(&w->s); /* Calls in flight end before the close returns. */
	assert_string_equal(cgn_buf_z(&w->told), "up done:STORAGE done:FINE ");
	close_world(w);
}

static void a_policy_survives_a_restart_and_is_told_at_the_start(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_non_null(strstr(state_policy_where(w->s), "/state/cognitora.policy"));
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR("{}"), cordon_done, w, &err)));
	/* The same again: nothing changes. */
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR("{}"), cordon_done, w, &err)));
	assert_null(strstr(cgn_buf_z(&w->told), "done"));
	wait_for(w, "policy:{} done:FINE done:FINE ");
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR("{\"x\":1}"), cordon_done, w, &err)));
	wait_for(w, "policy:{\"x\":1} done:FINE ");
	close_world(w);

	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	wait_for(w, "up ");
	assert_string_equal(cgn_buf_z(&w->told), "policy:{\"x\":1} up ");
	close_world(w);

	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR(""), cordon_done, w, &err)));
	/* Removing an absent policy succeeds. */
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR(""), cordon_done, w, &err)));
	wait_for(w, "done:FINE done:FINE ");
	close_world(w);

	assert_int_equal(state_begin(w, "state_backend = \"static\"\nnodes = [\"h:1\"]\n", &err), CGN_FINE);
	wait_for(w, "+h:1@h:1 ");
	assert_string_equal(cgn_buf_z(&w->told), "up +h:1@h:1 ");
	close_world(w);
}

/* The second change was computed from a document that the first one replaces. */
static void of_two_changes_at_once_one_is_told_to_repeat(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR("{\"x\":1}"), cordon_done, w, &err)));
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR("{\"x\":2}"), cordon_done, w, &err)));
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR(""), cordon_done, w, &err)));
	wait_for(w, "policy:{\"x\":1} done:FINE done:CONFLICT done:CONFLICT ");
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR("{\"x\":2}"), cordon_done, w, &err)));
	wait_for(w, "policy:{\"x\":2} done:FINE ");
	close_world(w);

	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	wait_for(w, "up ");
	assert_string_equal(cgn_buf_z(&w->told), "policy:{\"x\":2} up ");
	close_world(w);
}

static void refusal_done(void *user, const struct cgn_err *err)
{
	char pid[32];
	(void)snprintf(pid, sizeof pid, "process %d,", getpid());
	assert_non_null(strstr(err->msg, "/state/cognitora.lock"));
	assert_non_null(strstr(err->msg, pid));
	cordon_done(user, err);
}

/* Two routers share the folder: the second one reads, and changes nothing until the first one ends. */
static void a_folder_of_another_router_is_not_written(void **state)
{
	struct world *w = *state, first = {.s = NULL};
	struct cgn_err err;
	(void)snprintf(first.dir, sizeof first.dir, "%s", w->dir);
	assert_int_equal(state_begin(&first, "", &err), CGN_FINE);
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	wait_for(w, "up ");
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR("{}"), refusal_done, w, &err)));
	assert_true(cgn_ok(state_cordon(w->s, "n1", true, refusal_done, w, &err)));
	wait_for(w, "up done:STORAGE done:STORAGE ");
	assert_false(state_watch_cordoned(w->s, "n1"));

	assert_true(cgn_ok(state_policy_put(first.s, CGN_STR("{\"x\":1}"), cordon_done, &first, &err)));
	assert_true(cgn_ok(state_cordon(first.s, "n2", true, cordon_done, &first, &err)));
	wait_for(&first, "policy:{\"x\":1} done:FINE cordon:n2 done:FINE ");
	close_world(&first);

	/* The second router reads the files again before it writes. */
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR("{}"), cordon_done, w, &err)));
	wait_for(w, "done:CONFLICT ");
	assert_non_null(strstr(cgn_buf_z(&w->told), "cordon:n2 policy:{\"x\":1} "));
	assert_true(state_watch_cordoned(w->s, "n2"));
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR("{}"), cordon_done, w, &err)));
	wait_for(w, "policy:{} done:FINE ");
	close_world(w);
}

static void a_policy_that_can_not_be_kept_is_refused(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	char path[128];
	(void)snprintf(path, sizeof path, "%s/state", w->dir);
	FILE *f = fopen(path, "w"); /* A file where the folder should be. */
	assert_non_null(f);
	(void)fclose(f);
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_true(cgn_ok(state_policy_put(w->s, CGN_STR("{}"), cordon_done, w, &err)));
	wait_for(w, "done:STORAGE ");
	assert_null(strstr(cgn_buf_z(&w->told), "policy:"));
	char *long_text = calloc(1, STATE_MAX_POLICY + 1);
	assert_non_null(long_text);
	struct cgn_str text = {long_text, STATE_MAX_POLICY + 1};
	assert_int_equal(state_policy_put(w->s, text, cordon_done, w, &err).code, CGN_TOO_LARGE);
	free(long_text);
	close_world(w);
}

static void a_broken_line_is_not_a_node(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	char path[128];
	(void)snprintf(path, sizeof path, "%s/state", w->dir);
	assert_int_equal(mkdir(path, 0755), 0);
	(void)snprintf(path, sizeof path, "%s/state/cognitora.cordons", w->dir);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	(void)fputs("good\n\nb d\n../../etc\nlast", f);
	(void)fclose(f);
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	assert_true(state_watch_cordoned(w->s, "good"));
	assert_true(state_watch_cordoned(w->s, "last"));
	assert_false(state_watch_cordoned(w->s, "b d"));
	close_world(w);
}

/* Agents announce themselves again within a heartbeat: until then the nodes of the earlier run count, each for a lease. */
static void nodes_survive_a_restart(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	wait_for(w, "up ");
	assert_int_equal(node_announce(w, "n1", "h:1", &err), CGN_FINE);
	assert_int_equal(node_announce(w, "n2", "h:2", &err), CGN_FINE);
	assert_true(cgn_ok(state_leave_received(w->s, "n2", &err)));
	close_world(w);

	assert_int_equal(state_begin(w, "", &err), CGN_FINE);
	wait_for(w, "up +n1@h:1 ");
	/* The owner was not heard of since then: another address may take the id. */
	assert_int_equal(node_announce(w, "n1", "h:9", &err), CGN_FINE);
	wait_for(w, "up +n1@h:1 +n1@h:9 -n1 "); /* Silent for the length of the lease. */
	close_world(w);
}

static void a_file_of_another_cluster_or_format_is_ignored(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	char path[128];
#define NODES "\"nodes\":[{\"id\":\"n1\",\"address\":\"h:1\"}]"
#define REST  "\"written\":5,\"cordons\":[],\"policy\":\"\"}"
	static const struct {
		const char *text, *told;
	} files[] = {
		{"{\"format\":\"cognitora members 1\",\"cluster\":\"cognitora\"," NODES "," REST,
			"up +n1@h:1 "},
		{"{\"format\":\"cognitora members 2\",\"cluster\":\"cognitora\"," NODES "," REST, "up "},
		{"{\"format\":\"cognitora members 1\",\"cluster\":\"other\"," NODES "," REST, "up "},
		{"{\"format\":\"cognitora members 1\",\"cluster\":\"cognitora\"," REST, "up "},
		{"{\"format\":\"cognitora members 1\",\"cluster\":\"cognitora\"," NODES
		 ",\"written\":5,\"cordons\":[],\"policy\":7}",
			"up "},
		{"{\"format\":\"cognitora members 1\",\"cluster\":\"cognitora\"," NODES
		 ",\"written\":5,\"cordons\":{},\"policy\":\"\"}",
			"up "},
		{"{\"format\":\"cognitora mem", "up "},
	};
	(void)snprintf(path, sizeof path, "%s/state", w->dir);
	assert_int_equal(mkdir(path, 0755), 0);
	(void)snprintf(path, sizeof path, "%s/state/cognitora.members", w->dir);
	for (size_t i = 0; i < CGN_COUNT(files); i++) {
		FILE *f = fopen(path, "w");
		assert_non_null(f);
		(void)fputs(files[i].text, f);
		(void)fclose(f);
		assert_int_equal(state_begin(w, "", &err), CGN_FINE);
		wait_for(w, files[i].told);
		assert_true(cgn_ok(state_cordon(w->s, "x", false, cordon_done, w, &err)));
		wait_for(w, "done:FINE "); /* The router was told by now what the file says. */
		assert_true(strncmp(cgn_buf_z(&w->told), files[i].told, strlen(files[i].told)) == 0);
		assert_int_equal(w->told.n, strlen(files[i].told) + strlen("done:FINE "));
		close_world(w);
	}
}

static void static_nodes_are_their_addresses(void **state)
{
	struct world *w = *state;
	struct cgn_err err;
	assert_int_equal(state_begin(w, "state_backend = \"static\"\nnodes = [\"h:1\", \"h:1\"]\n", &err),
		CGN_FINE);
	wait_for(w, "+h:1@h:1 ");
	assert_string_equal(cgn_buf_z(&w->told), "up +h:1@h:1 ");
	assert_int_equal(node_announce(w, "n1", "h:2", &err), CGN_UNSUPPORTED);
	assert_int_equal(state_leave_received(w->s, "h:1", &err).code, CGN_UNSUPPORTED);
	close_world(w);
}

/* Without certificates there is no TLS; a certificate that cannot be read is an error. */
static void tls_is_there_when_it_is_configured(void **state)
{
	struct world *w = *state;
	struct tls_ctx *server = NULL, *client = NULL;
	struct cgn_err err;
	open_world(w, "");
	assert_true(cgn_ok(state_tls_server(w->cfg, &server, &err)));
	assert_true(cgn_ok(state_tls_client(w->cfg, &client, &err)));
	assert_true(server == NULL && client == NULL);
	close_world(w);
	const char *const set[] = {"security.ca_file=/no/ca", "security.cert_file=/no/crt",
		"security.key_file=/no/key"};
	struct config *c = NULL;
	if (!cgn_ok(settings_load("x", CGN_STR(""), NULL, set, CGN_COUNT(set), &c, &err)))
		fail_msg("%s", err.msg);
	assert_false(cgn_ok(state_tls_server(c, &server, &err)));
	assert_non_null(strstr(err.msg, "/no/"));
	assert_false(cgn_ok(state_tls_client(c, &client, &err)));
	config_free(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nodes_come_change_leave_and_time_out, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(the_lease_that_ends_first_is_looked_at_first, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(an_id_belongs_to_one_address_until_the_lease_ends,
			world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(unsound_nodes_are_refused_with_a_reason, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(tls_is_there_when_it_is_configured, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(there_is_a_bound_on_nodes, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(cordons_survive_a_restart, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(a_cordon_that_can_not_be_kept_is_refused, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_policy_survives_a_restart_and_is_told_at_the_start,
			world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(of_two_changes_at_once_one_is_told_to_repeat, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_folder_of_another_router_is_not_written, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_policy_that_can_not_be_kept_is_refused, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(a_broken_line_is_not_a_node, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(nodes_survive_a_restart, world_setup, world_teardown),
		cmocka_unit_test_setup_teardown(a_file_of_another_cluster_or_format_is_ignored, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(static_nodes_are_their_addresses, world_setup,
			world_teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
