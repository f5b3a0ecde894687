/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/codec/codec.h"
#include "base/pb/pb_json.h"
#include "base/pb/pb_tree.h"
#include "cognitora/v1/agent.pb-c.h"
#include "cognitora/v1/control.pb-c.h"
#include "cognitora/v1/kv.pb-c.h"
#include "etcd/etcd.pb-c.h"

static void assert_written(const void *message, enum pb_json_style style, const char *expected)
{
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	pb_json_put(&o, message, style);
	assert_string_equal(cgn_buf_z(&b), expected);
	cgn_buf_fini(&b);
}

static void the_two_styles_differ_in_names_integers_and_defaults(void **state)
{
	(void)state;
	Cognitora__V1__Weight weight = COGNITORA__V1__WEIGHT__INIT, *weights[] = {&weight};
	Cognitora__V1__SetPolicyRequest rq = COGNITORA__V1__SET_POLICY_REQUEST__INIT;
	Cognitora__V1__ShadowStatus s = COGNITORA__V1__SHADOW_STATUS__INIT;
	weight.value = 0.1;
	rq.weights = weights;
	rq.n_weights = 1;
	s.cheaper_ms = 1.5;
	s.cached_tokens = UINT64_MAX;
	assert_written(&rq, PB_JSON_PROTO3, "{\"weights\":[{\"value\":0.1}]}");
	assert_written(&rq, PB_JSON_PLAIN,
		"{\"policy\":\"\",\"weights\":[{\"name\":\"\",\"value\":0.1}],\"reset\":false}");
	assert_written(&s, PB_JSON_PROTO3, "{\"cheaperMs\":1.5,\"cachedTokens\":\"18446744073709551615\"}");
	assert_written(&s, PB_JSON_PLAIN,
		"{\"policy\":\"\",\"agreed\":0,\"differed\":0,\"cheaper_ms\":1.5,\"dearer_ms\":0,"
		"\"cached_tokens\":18446744073709551615,\"chosen_cached_tokens\":0,\"share\":0,\"figures\":[]}");
}

static void enums_bytes_and_signed_numbers_are_written(void **state)
{
	(void)state;
	uint8_t bytes[] = {0xff, 0, 1};
	Etcdserverpb__KeyValue kv = ETCDSERVERPB__KEY_VALUE__INIT;
	Etcdserverpb__Event e = ETCDSERVERPB__EVENT__INIT;
	kv.key = (ProtobufCBinaryData){3, bytes};
	kv.lease = INT64_MIN;
	e.kv = &kv;
	e.type = ETCDSERVERPB__EVENT__EVENT_TYPE__DELETE;
	assert_written(&e, PB_JSON_PROTO3,
		"{\"type\":\"DELETE\",\"kv\":{\"key\":\"/wAB\",\"lease\":\"-9223372036854775808\"}}");
	e.type = (Etcdserverpb__Event__EventType)7;
	e.kv = NULL;
	assert_written(&e, PB_JSON_PLAIN, "{\"type\":7}");
}

static void a_oneof_has_the_member_that_is_set(void **state)
{
	(void)state;
	Cognitora__V1__GenerateChunk c = COGNITORA__V1__GENERATE_CHUNK__INIT;
	assert_written(&c, PB_JSON_PLAIN, "{}");
	c.piece_case = COGNITORA__V1__GENERATE_CHUNK__PIECE_DATA;
	assert_written(&c, PB_JSON_PROTO3, "{\"data\":\"\"}");
}

static void a_selection_orders_and_renames(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	Cognitora__V1__Engine e = COGNITORA__V1__ENGINE__INIT, *engines[] = {&e};
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	e.name = (char[]){"e0"};
	e.kv_blocks_total = 1ULL << 60;
	n.id = (char[]){"a"};
	n.engines = engines;
	n.n_engines = 1;
	pb_json_select(&o, &n, "draining node=id kv list=engines{total=kv_blocks_total name} role");
	assert_string_equal(cgn_buf_z(&b),
		"{\"draining\":false,\"node\":\"a\",\"list\":[{\"total\":1152921504606846976,\"name\":\"e0\"}],"
		"\"role\":\"ROLE_BOTH\"}");
	cgn_buf_fini(&b);
	o = json_out_to(&b);
	json_open(&o, '{');
	json_key_u64(&o, "first", 1);
	pb_json_members(&o, &n, "id");
	json_close(&o, '}');
	assert_string_equal(cgn_buf_z(&b), "{\"first\":1,\"id\":\"a\"}");
	cgn_buf_fini(&b);
}

static void assert_selected(const void *message, const char *select, const char *want)
{
	struct cgn_buf b = {0};
	struct json_out o = json_out_to(&b);
	pb_json_select(&o, message, select);
	assert_string_equal(cgn_buf_z(&b), want);
	cgn_buf_fini(&b);
}

static void marks_leave_out_write_null_and_flatten(void **state)
{
	(void)state;
	Cognitora__V1__NodeStatus s = COGNITORA__V1__NODE_STATUS__INIT;
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	n.id = (char[]){"a"};
	n.role = COGNITORA__V1__ROLE__ROLE_DECODE;
	assert_selected(&s, "node*{id} node watts! node_watts! reason? load_age_ms",
		"{\"watts\":null,\"node_watts\":null,\"load_age_ms\":0}");
	s.node = &n;
	s.node_watts = 7;
	s.reason = (char[]){"why"};
	assert_selected(&s, "node*{name=id role~} node_watts! reason?",
		"{\"name\":\"a\",\"role\":\"decode\",\"node_watts\":7,\"reason\":\"why\"}");
	assert_selected(&s, "node*{engines{name}}", "{\"engines\":[]}");
	assert_selected(&s, "node_watts%", "{\"node_watts\":7}");
	s.node_watts = NAN;
	assert_selected(&s, "node_watts% node_watts", "{\"node_watts\":null}");
}

static void repeated_submessages_are_written_by_their_key(void **state)
{
	(void)state;
	Cognitora__V1__NodeCache cache = COGNITORA__V1__NODE_CACHE__INIT;
	Cognitora__V1__IndexNode a = COGNITORA__V1__INDEX_NODE__INIT, b = COGNITORA__V1__INDEX_NODE__INIT;
	Cognitora__V1__IndexNode *nodes[] = {&a, &b};
	Cognitora__V1__Index index = COGNITORA__V1__INDEX__INIT;
	assert_selected(&index, "nodes@{cache*}", "{\"nodes\":{}}");
	a.id = (char[]){"a"};
	b.id = (char[]){"b\""};
	b.cache = &cache;
	cache.blocks = 7;
	index.nodes = nodes;
	index.n_nodes = 2;
	assert_selected(&index, "nodes@{cache*{blocks}} blocks",
		"{\"nodes\":{\"a\":{},\"b\\\"\":{\"blocks\":7}},\"blocks\":0}");
	assert_selected(&index, "nodes@{=id}", "{\"nodes\":{\"a\":\"a\",\"b\\\"\":\"b\\\"\"}}");
}

static void deprecated_fields_are_not_in_plain_style(void **state)
{
	(void)state;
	Cognitora__V1__CascadesResponse *c = NULL;
	assert_int_equal(pb_json_read(&cognitora__v1__cascades_response__descriptor,
				 CGN_STR("{\"json\":\"{}\"}"), &c, NULL)
				 .code,
		CGN_FINE);
	assert_written(c, PB_JSON_PLAIN, "{\"calibrates\":false,\"pairs\":[]}");
	assert_written(c, PB_JSON_PROTO3, "{\"json\":\"{}\"}");
	pb_free(&c);
}

static void enumerations_have_words(void **state)
{
	(void)state;
	char word[PB_ENUM_WORD];
	assert_string_equal(pb_enum_word(&cognitora__v1__role__descriptor, 1, word), "prefill");
	assert_string_equal(pb_enum_word(&cognitora__v1__role__descriptor, 99, word), "both");
	assert_string_equal(pb_enum_word(&cognitora__v1__wanted_state__descriptor, 0, word), "as_configured");
}

/* ---- trees ---- */

static void a_tree_grows_its_lists(void **state)
{
	(void)state;
	struct pb_tree t;
	pb_tree_init(&t, 65536);
	Cognitora__V1__CascadesResponse *c = PB_NEW(&t, cascades_response);
	for (uint64_t i = 0; i < 100; i++) {
		Cognitora__V1__CascadePair *p = PB_ADD(&t, c, pairs, cascade_pair);
		p->compared = i;
		p->small = pb_tree_text(&t, CGN_STR("name"));
	}
	assert_false(t.bad);
	assert_int_equal(c->n_pairs, 100);
	for (uint64_t i = 0; i < 100; i++)
		assert_true(c->pairs[i]->compared == i && strcmp(c->pairs[i]->small, "name") == 0);
	pb_tree_fini(&t);
}

/* At every limit, the tree is bad or has all of it, and writing to spare messages does no harm. */
static void a_tree_without_memory_is_bad(void **state)
{
	(void)state;
	size_t bad = 0;
	for (size_t limit = 0; limit < 8192; limit += 64) {
		struct pb_tree t;
		pb_tree_init(&t, limit);
		Cognitora__V1__PeersResponse *r = PB_NEW(&t, peers_response);
		for (unsigned i = 0; i < 9; i++) {
			Cognitora__V1__PeerStatus *p = PB_ADD(&t, r, peers, peer_status);
			p->summary = PB_NEW(&t, peer_summary);
			Cognitora__V1__PeerModel *m = PB_ADD(&t, p->summary, models, peer_model);
			m->model = pb_tree_text(&t, CGN_STR("m"));
		}
		bad += t.bad;
		assert_true(t.bad || r->n_peers == 9);
		pb_tree_fini(&t);
	}
	assert_true(bad > 0 && bad < 128);
}

static void assert_read(const ProtobufCMessageDescriptor *type, const char *json, const char *again)
{
	ProtobufCMessage *m = NULL;
	struct cgn_err err = {.code = CGN_FINE};
	if (!cgn_ok(pb_json_read(type, cgn_str_of(json), &m, &err)))
		fail_msg("%s: %s", json, err.msg);
	assert_written(m, PB_JSON_PROTO3, again);
	pb_free(&m);
}

static void both_spellings_nulls_and_unknown_members_are_read(void **state)
{
	(void)state;
	assert_read(&cognitora__v1__engine__descriptor,
		"{\"kv_blocks_total\":7,\"kvBlockTokens\":\"16\",\"name\":null,\"future\":[{}],\"ready\":true,"
		"\"models\":[\"a\",\"\\u00e4\"]}",
		"{\"models\":[\"a\",\"\xc3\xa4\"],\"ready\":true,\"kvBlocksTotal\":\"7\",\"kvBlockTokens\":16}");
	assert_read(&etcdserverpb__event__descriptor,
		"{\"type\":1,\"kv\":{\"lease\":-5,\"version\":\"-9223372036854775808\",\"key\":\"_wAB\",\"value\":\"\"}}",
		"{\"type\":\"DELETE\",\"kv\":{\"key\":\"/wAB\",\"version\":\"-9223372036854775808\",\"lease\":\"-5\"}}");
	assert_read(&cognitora__v1__load__descriptor, "{\"kv_usage\":0.5,\"inflight\":1e3}",
		"{\"inflight\":1000,\"kvUsage\":0.5}");
	assert_read(&cognitora__v1__node__descriptor, "{\"role\":\"ROLE_KING\",\"id\":\"a\"}",
		"{\"id\":\"a\"}"); /* The role is of a later version. */
	assert_read(&cognitora__v1__generate_chunk__descriptor, "{\"head\":{\"status\":-1}}",
		"{\"head\":{\"status\":-1}}");
}

static void wrong_values_are_refused_with_their_name(void **state)
{
	(void)state;
	static const struct {
		const ProtobufCMessageDescriptor *type;
		const char *json, *says;
	} bad[] = {
		{&cognitora__v1__engine__descriptor, "", "line 1"},
		{&cognitora__v1__engine__descriptor, "[]", "not an object"},
		{&cognitora__v1__engine__descriptor, "{\"name\":5}", "\"name\" must be a string"},
		{&cognitora__v1__engine__descriptor, "{\"name\":\"a\\u0000b\"}", "NUL"},
		{&cognitora__v1__engine__descriptor, "{\"models\":{}}", "\"models\" must be an array"},
		{&cognitora__v1__engine__descriptor, "{\"models\":[\"a\",null]}",
			"\"models\" must be a string"},
		{&cognitora__v1__engine__descriptor, "{\"ready\":1}", "\"ready\" must be true or false"},
		{&cognitora__v1__engine__descriptor, "{\"slots\":4294967296}", "from 0 to 4294967295"},
		{&cognitora__v1__engine__descriptor, "{\"slots\":-1}", "\"slots\" must be a whole number"},
		{&cognitora__v1__engine__descriptor, "{\"kvBlocksTotal\":1.5}", "\"kvBlocksTotal\""},
		{&cognitora__v1__engine__descriptor, "{\"kvBlocksTotal\":\"18446744073709551616\"}",
			"\"kvBlocksTotal\""},
		{&cognitora__v1__node__descriptor, "{\"role\":true}", "\"role\""},
		{&cognitora__v1__node__descriptor, "{\"role\":-1}", "\"role\""},
		{&cognitora__v1__node__descriptor, "{\"kv\":[]}", "\"kv\" must be an object"},
		{&cognitora__v1__node__descriptor, "{\"engines\":[{\"name\":\"e\"},{\"slots\":\"x\"}]}",
			"\"slots\""},
		{&cognitora__v1__load__descriptor, "{\"kvUsage\":1e39}", "a float"},
		{&cognitora__v1__weight__descriptor, "{\"value\":1e999}", "a double"},
		{&cognitora__v1__kv_key__descriptor, "{\"digest\":\"a\"}", "base64"},
		{&cognitora__v1__kv_key__descriptor, "{\"digest\":5}", "base64"},
		{&cognitora__v1__generate_chunk__descriptor, "{\"head\":{},\"data\":\"\"}", "oneof"},
		{&cognitora__v1__engine__descriptor, "{\"name\":\"a\",\"name\":\"b\"}", "twice"},
		{&cognitora__v1__node__descriptor, "{\"engines\":[{\"slots\":1,\"\\u0073lots\":2}]}",
			"twice"},
		{&cognitora__v1__engine__descriptor, "{\"kvBlocksTotal\":\"1\",\"kv_blocks_total\":2}",
			"twice"},
		{&etcdserverpb__lease_grant_request__descriptor, "{\"TTL\":\"9223372036854775808\"}",
			"\"TTL\""},
	};
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		ProtobufCMessage *m = NULL;
		struct cgn_err err;
		assert_int_equal(pb_json_read(bad[i].type, cgn_str_of(bad[i].json), &m, &err).code,
			CGN_INVALID);
		assert_null(m);
		if (strstr(err.msg, bad[i].says) == NULL)
			fail_msg("%s: \"%s\" does not say %s", bad[i].json, err.msg, bad[i].says);
	}
}

/* Three bytes of text for each empty engine. */
static void memory_is_bounded_by_the_text(void **state)
{
	(void)state;
	struct cgn_buf b = {0};
	Cognitora__V1__Node *n = NULL;
	struct cgn_err err;
	cgn_buf_putz(&b, "{\"engines\":[{}");
	for (size_t i = 0; i < 100000; i++)
		cgn_buf_putz(&b, ",{}");
	cgn_buf_putz(&b, "]}");
	assert_int_equal(pb_json_read(&cognitora__v1__node__descriptor, cgn_buf_view(&b), &n, &err).code,
		CGN_INVALID);
	assert_non_null(strstr(err.msg, "memory"));
	assert_null(n);
	cgn_buf_fini(&b);
}

static void base64_is_read_in_both_alphabets(void **state)
{
	(void)state;
	static const char *const good[] = {"+/8=", "-_8", "-_8="},
				 *const bad[] = {"+", "+/8==", "+/=8", "+/ 8", "+==="};
	struct cgn_buf b = {0};
	for (size_t i = 0; i < CGN_COUNT(good); i++) {
		assert_true(base64_get(&b, cgn_str_of(good[i])));
		assert_true(cgn_str_eq(cgn_buf_view(&b), CGN_STR("\xfb\xff")));
		cgn_buf_fini(&b);
	}
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		assert_false(base64_get(&b, cgn_str_of(bad[i])));
		assert_int_equal(b.n, 0);
	}
	cgn_buf_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_two_styles_differ_in_names_integers_and_defaults),
		cmocka_unit_test(enums_bytes_and_signed_numbers_are_written),
		cmocka_unit_test(a_oneof_has_the_member_that_is_set),
		cmocka_unit_test(a_selection_orders_and_renames),
		cmocka_unit_test(marks_leave_out_write_null_and_flatten),
		cmocka_unit_test(repeated_submessages_are_written_by_their_key),
		cmocka_unit_test(deprecated_fields_are_not_in_plain_style),
		cmocka_unit_test(enumerations_have_words),
		cmocka_unit_test(a_tree_grows_its_lists),
		cmocka_unit_test(a_tree_without_memory_is_bad),
		cmocka_unit_test(both_spellings_nulls_and_unknown_members_are_read),
		cmocka_unit_test(wrong_values_are_refused_with_their_name),
		cmocka_unit_test(memory_is_bounded_by_the_text),
		cmocka_unit_test(base64_is_read_in_both_alphabets),
	};
	return cmocka_run_group_tests_name("base_pb_json", tests, NULL, NULL);
}
