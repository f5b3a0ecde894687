/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "base/json/json.h"
#include "policy/node/proto/document.h"
#include "policy/route/session/session.h"

#define START (1000 * CGN_SEC)

static struct sessions *table_of(size_t max)
{
	struct sessions *s = NULL;
	const struct digest seed = {{7}};
	assert_true(cgn_ok(sessions_new(max, &seed, &s, NULL)));
	return s;
}

static struct session_turn turn_of(struct sessions *s, const char *tenant, const char *id, cgn_nsec now)
{
	struct session_turn t;
	sessions_begin(s, &(struct session_name){cgn_str_of(tenant), cgn_str_of(id), SESSION_FROM_CODEX}, now,
		&t);
	return t;
}

static struct session_forecast end_with(struct sessions *s, const struct session_turn *t, const char *tool,
	cgn_nsec now)
{
	struct session_forecast f;
	const struct cgn_str name = cgn_str_of(tool);
	sessions_end(s,
		&(struct session_end){.turn = t,
			.node = CGN_STR("gpu-1"),
			.tools = &name,
			.n_tools = name.n > 0,
			.prompt = 100,
			.cached = 80,
			.answer = 10},
		now, &f);
	return f;
}

static void states_are(struct sessions *s, cgn_nsec now, size_t running, size_t tool, size_t idle)
{
	size_t n[SESSION_STATES];
	sessions_count(s, now, n);
	assert_int_equal(n[SESSION_RUNNING], running);
	assert_int_equal(n[SESSION_TOOL], tool);
	assert_int_equal(n[SESSION_IDLE], idle);
}

static void turns_are_counted_for_each_tenant(void **state)
{
	(void)state;
	struct sessions *s = table_of(8);
	struct session_turn a = turn_of(s, "team-a", "x", START), b = turn_of(s, "team-b", "x", START);
	assert_int_equal(a.number, 1);
	assert_int_equal(b.number, 1); /* An equal id of another tenant is another session. */
	assert_true(a.key != b.key);
	(void)end_with(s, &a, "", START + 1);
	a = turn_of(s, "team-a", "x", START + 2);
	assert_int_equal(a.number, 2);
	states_are(s, START + 2, 2, 0, 0);
	(void)end_with(s, &a, "", START + 3);
	(void)end_with(s, &b, "", START + 3);
	states_are(s, START + 3, 0, 0, 2);
	sessions_free(&s);
}

static void the_oldest_session_gives_way(void **state)
{
	(void)state;
	struct sessions *s = table_of(3);
	struct session_turn a = turn_of(s, "-", "a", START);
	(void)turn_of(s, "-", "b", START + 1);
	(void)turn_of(s, "-", "c", START + 2);
	(void)end_with(s, &a, "", START + 3); /* b is the oldest now. */
	(void)turn_of(s, "-", "d", START + 4);
	assert_int_equal(turn_of(s, "-", "a", START + 5).number, 2);
	assert_int_equal(turn_of(s, "-", "c", START + 6).number, 2);
	assert_int_equal(turn_of(s, "-", "b", START + 7).number, 1);
	for (unsigned i = 0; i < 100; i++) {
		char id[16];
		(void)snprintf(id, sizeof id, "s%u", i);
		assert_int_equal(turn_of(s, "-", id, START + 8 + i).number, 1);
	}
	/* The end of a request whose session was replaced changes nothing. */
	(void)end_with(s, &a, "bash", START + 200);
	states_are(s, START + 200, 3, 0, 0);
	sessions_free(&s);
}

/* Call |tool| |n| times; each takes |took|. Returns the time at the end. */
static cgn_nsec pauses_learn(struct sessions *s, const char *tenant, const char *tool, unsigned n,
	cgn_nsec took, cgn_nsec now)
{
	for (unsigned i = 0; i < n; i++) {
		struct session_turn t = turn_of(s, tenant, "learner", now);
		(void)end_with(s, &t, tool, now += CGN_SEC);
		now += took;
	}
	struct session_turn t = turn_of(s, tenant, "learner", now);
	assert_true(t.returned && t.paused == took);
	(void)end_with(s, &t, "", now);
	return now;
}

static void durations_are_learned_by_tool(void **state)
{
	(void)state;
	struct sessions *s = table_of(8);
	cgn_nsec now = pauses_learn(s, "-", "bash", 20, 30 * CGN_SEC, START);
	now = pauses_learn(s, "-", "read", 20, 200 * CGN_MSEC, now);
	struct session_turn t = turn_of(s, "-", "a", now);
	assert_false(t.returned);
	struct session_forecast f = end_with(s, &t, "bash", now);
	assert_int_equal(f.samples, 20);
	assert_int_equal(f.p50, 30 * CGN_SEC);
	assert_true(f.p90 >= f.p50);
	states_are(s, now, 0, 1, 1);
	t = turn_of(s, "-", "a", now + CGN_SEC);
	f = end_with(s, &t, "read", now + CGN_SEC);
	assert_int_equal(f.p50, 200 * CGN_MSEC);
	/* A tool that is not known counts as any tool: half of these took 200 ms, half 30 s. */
	t = turn_of(s, "-", "b", now);
	f = end_with(s, &t, "new", now);
	assert_true(f.samples == 41 && f.p90 > 20 * CGN_SEC);
	/* Another tenant's tool of the same name is another one. */
	t = turn_of(s, "other", "b", now);
	assert_int_equal(end_with(s, &t, "bash", now).samples, 41);
	sessions_free(&s);
}

static void without_enough_durations_nothing_is_forecast(void **state)
{
	(void)state;
	struct sessions *s = table_of(8);
	cgn_nsec now = pauses_learn(s, "-", "bash", SESSION_SAMPLES - 1, CGN_SEC, START);
	struct session_turn t = turn_of(s, "-", "a", now);
	assert_int_equal(end_with(s, &t, "bash", now).samples, 0);
	/* A user who comes back tomorrow does not make the tool slow, and the session is idle meanwhile. */
	states_are(s, now + SESSION_PAUSE_MAX - 1, 0, 1, 1);
	states_are(s, now + SESSION_PAUSE_MAX, 0, 0, 2);
	t = turn_of(s, "-", "a", now + 2 * SESSION_PAUSE_MAX);
	assert_false(t.returned);
	sessions_free(&s);
}

static void service_halves_in_a_minute(void **state)
{
	(void)state;
	struct sessions *s = table_of(2);
	struct session_turn t = turn_of(s, "-", "a", START);
	assert_int_equal(sessions_charge(s, &t, 1000, START), 0);
	assert_int_equal(sessions_charge(s, &t, 0, START), 1000);
	/* The end settles the charge: 20 prompt tokens were computed and 10 of the answer. */
	(void)end_with(s, &t, "", START);
	t = turn_of(s, "-", "a", START);
	assert_int_equal(sessions_charge(s, &t, 8000, START), 30);
	assert_in_range(sessions_charge(s, &t, 0, START + SESSION_HALF_LIFE), 4014, 4016);
	t = (struct session_turn){0};
	assert_int_equal(sessions_charge(s, &t, 100, START), 0);
	sessions_free(&s);
}

static void user_is(const char *text, const char *id)
{
	char room[SESSION_ID_MAX];
	size_t n = session_id_of_user(cgn_str_of(text), room);
	assert_true(cgn_str_is((struct cgn_str){room, n}, id));
}

static void a_user_of_claude_code_names_its_session(void **state)
{
	(void)state;
	user_is("user_01ab_account_23cd_session_45-ef", "45-ef");
	user_is("user_session_1_session_2", "2");
	user_is("{\"device_id\":\"d\",\"account_uuid\":\"\",\"session_id\":\"45-ef\"}", "45-ef");
	user_is("{\"session_id\":5}", "");
	user_is("{\"session_id\":\"a\\u0000b\"}", "");
	user_is("{", "");
	user_is("someone@example.net", "");
	user_is("user_session_", "");
	user_is("", "");
}

static void ids_are_visible_and_short(void **state)
{
	(void)state;
	char text[SESSION_ID_MAX + 1];
	memset(text, 'a', sizeof text);
	assert_true(session_id_is_ok((struct cgn_str){text, SESSION_ID_MAX}));
	assert_false(session_id_is_ok((struct cgn_str){text, SESSION_ID_MAX + 1}));
	assert_false(session_id_is_ok(CGN_STR("")));
	assert_false(session_id_is_ok(CGN_STR("a b")));
	assert_false(session_id_is_ok(CGN_STR("a\xc3\xa4")));
}

static void tenants_route_equal_ids_apart(void **state)
{
	(void)state;
	const struct session_name a = {CGN_STR("a"), CGN_STR("x"), SESSION_FROM_HEADER},
				  b = {CGN_STR("b"), CGN_STR("x"), SESSION_FROM_CODEX};
	assert_true(session_route_hash(&a) != session_route_hash(&b));
	assert_true(session_route_hash(&a) != 0);
}

/* Write the sessions of |q| as the router's document. */
static void list_put(const struct sessions *s, const struct session_query *q, cgn_nsec now,
	struct cgn_buf *out)
{
	struct json_out j = json_out_to(out);
	struct pb_tree t;
	pb_tree_init(&t, 65536);
	Cognitora__V1__Sessions *list = PB_NEW(&t, sessions);
	sessions_fill(s, q, now, &t, list);
	assert_false(t.bad);
	proto_document_put(PROTO_DOCUMENT_SESSIONS, list, &j);
	pb_tree_fini(&t);
}

static void the_list_is_json(void **state)
{
	(void)state;
	struct sessions *s = table_of(4);
	struct cgn_buf b = {0};
	struct json_val doc, list, one;
	cgn_nsec now = pauses_learn(s, "team", "a \"tool\"", 5, CGN_SEC, START);
	struct session_turn t = turn_of(s, "team", "x", now);
	(void)end_with(s, &t, "a \"tool\"", now);
	list_put(s, &(struct session_query){.state = SESSION_STATES, .most = 1}, now + CGN_SEC, &b);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&b), &doc, NULL, NULL)));
	assert_int_equal(json_get_u64(doc, "known", 0), 2);
	assert_true(json_get(doc, "sessions", &list));
	struct json_iter it = json_iter_of(list);
	assert_true(json_next_elem(&it, &one));
	assert_true(json_get(one, "state", &list) && cgn_str_is(list.raw, "\"tool\""));
	assert_int_equal((int)json_get_f64(one, "waits_ms", 0), 1000);
	assert_true(json_get_f64(one, "expected_ms", 0) > 0);
	assert_false(json_next_elem(&it, &one));
	cgn_buf_fini(&b);
	sessions_free(&s);
}

/* The list's time is the start of a turn of the control loop; a worker may have used the session since. */
static void a_session_used_later_than_the_list_has_waited_no_time(void **state)
{
	(void)state;
	struct sessions *s = table_of(4);
	struct cgn_buf b = {0};
	struct json_val doc, list, one;
	size_t n[SESSION_STATES];
	struct session_turn t = turn_of(s, "team", "x", START);
	(void)end_with(s, &t, "a tool", START);
	list_put(s, &(struct session_query){.state = SESSION_STATES, .most = 1}, START - CGN_MSEC, &b);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&b), &doc, NULL, NULL)));
	assert_true(json_get(doc, "sessions", &list));
	struct json_iter it = json_iter_of(list);
	assert_true(json_next_elem(&it, &one));
	assert_true(json_get_f64(one, "age_ms", -1) == 0);
	assert_true(json_get_f64(one, "idle_ms", -1) == 0);
	assert_true(json_get_f64(one, "waits_ms", -1) == 0);
	sessions_count(s, START - CGN_MSEC, n);
	assert_int_equal(n[SESSION_TOOL], 1);
	cgn_buf_fini(&b);
	sessions_free(&s);
}

static const char *kv_of(void *user, const struct session_place *place)
{
	(void)user;
	return place->last == 7 ? "ram" : NULL;
}

/* Write the ids of the sessions that |q| finds to |out|, with spaces in between; return how many match it. */
static uint64_t ids_of(const struct sessions *s, const struct session_query *q, cgn_nsec now, char out[64])
{
	struct cgn_buf b = {0};
	struct json_val doc, list, one, v;
	out[0] = '\0';
	list_put(s, q, now, &b);
	assert_true(cgn_ok(json_parse(cgn_buf_view(&b), &doc, NULL, NULL)));
	assert_true(json_get(doc, "sessions", &list));
	struct json_iter it = json_iter_of(list);
	while (json_next_elem(&it, &one)) {
		assert_true(json_get(one, "id", &v));
		(void)snprintf(out + strlen(out), 64 - strlen(out), "%s%.*s", out[0] != '\0' ? " " : "",
			(int)v.raw.n - 2, v.raw.p + 1);
		if (q->kv != NULL)
			assert_int_equal(json_get(one, "kv", &v),
				json_get(one, "model", &v) && cgn_str_is(v.raw, "\"big\""));
	}
	uint64_t matched = json_get_u64(doc, "matched", 99);
	cgn_buf_fini(&b);
	return matched;
}

static void answer_note(struct sessions *s, const char *tenant, const char *id, const char *model,
	uint64_t tokens, cgn_nsec now)
{
	struct session_turn t = turn_of(s, tenant, id, now);
	struct session_forecast f;
	const struct session_end end = {.turn = &t,
		.node = cgn_str_of(model[0] == 'b' ? "n1" : "n2"),
		.place = {.last = model[0] == 'b' ? 7 : 8},
		.model_name = cgn_str_of(model),
		.prompt = tokens};
	sessions_end(s, &end, now, &f);
}

static void pages_are_filtered_and_sorted(void **state)
{
	(void)state;
	struct sessions *s = table_of(8);
	char ids[64];
	answer_note(s, "t", "a", "big", 10, START);
	answer_note(s, "t", "b", "small", 30, START + 1);
	answer_note(s, "t", "b", "small", 5, START + 2);
	answer_note(s, "u", "c", "big", 20, START + 3);
	struct session_query q = {.state = SESSION_STATES, .most = 9, .kv = kv_of};
	assert_int_equal(ids_of(s, &q, START + 4, ids), 3);
	assert_string_equal(ids, "c b a");
	q.sort = SESSION_BY_TOKENS;
	(void)ids_of(s, &q, START + 4, ids);
	assert_string_equal(ids, "b c a");
	q.sort = SESSION_BY_TURNS; /* Equal ones: used last first. */
	(void)ids_of(s, &q, START + 4, ids);
	assert_string_equal(ids, "b c a");
	q.sort = SESSION_BY_AGE;
	(void)ids_of(s, &q, START + 4, ids);
	assert_string_equal(ids, "a b c");
	q.skip = 1;
	q.most = 1;
	assert_int_equal(ids_of(s, &q, START + 4, ids), 3);
	assert_string_equal(ids, "b");
	q.skip = 3;
	(void)ids_of(s, &q, START + 4, ids);
	assert_string_equal(ids, "");
	q = (struct session_query){.state = SESSION_IDLE,
		.most = 9,
		.model = CGN_STR("big"),
		.tenant = CGN_STR("t")};
	assert_int_equal(ids_of(s, &q, START + 4, ids), 1);
	assert_string_equal(ids, "a");
	q = (struct session_query){.state = SESSION_STATES, .most = 9, .node = CGN_STR("n2")};
	(void)ids_of(s, &q, START + 4, ids);
	assert_string_equal(ids, "b");
	q = (struct session_query){.state = SESSION_RUNNING, .most = 9};
	assert_int_equal(ids_of(s, &q, START + 4, ids), 0);
	assert_int_equal(session_sort_find(CGN_STR("tools")), SESSION_BY_TOOLS);
	assert_int_equal(session_sort_find(CGN_STR("size")), SESSION_SORTS);
	assert_int_equal(session_state_find(CGN_STR("idle")), SESSION_IDLE);
	assert_int_equal(session_state_find(CGN_STR("")), SESSION_STATES);
	sessions_free(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(turns_are_counted_for_each_tenant),
		cmocka_unit_test(the_oldest_session_gives_way),
		cmocka_unit_test(durations_are_learned_by_tool),
		cmocka_unit_test(without_enough_durations_nothing_is_forecast),
		cmocka_unit_test(service_halves_in_a_minute),
		cmocka_unit_test(a_user_of_claude_code_names_its_session),
		cmocka_unit_test(ids_are_visible_and_short),
		cmocka_unit_test(tenants_route_equal_ids_apart),
		cmocka_unit_test(the_list_is_json),
		cmocka_unit_test(a_session_used_later_than_the_list_has_waited_no_time),
		cmocka_unit_test(pages_are_filtered_and_sorted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
