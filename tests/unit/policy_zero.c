/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of no bytes, whose pointer may be NULL, at functions that read foreign bytes: none reads a byte, and none fails in
 * another way than its header says. Sanitizers see what a plain build does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/apierror/apierror.h"
#include "base/codec/codec.h"
#include "base/crypto/crypto.h"
#include "base/digest/digest.h"
#include "base/form/form.h"
#include "base/json/json.h"
#include "base/msgpack/msgpack.h"
#include "base/pb/pb.h"
#include "base/resp/resp.h"
#include "base/sse/sse.h"
#include "base/sum/sum.h"
#include "base/toml/toml.h"
#include "policy/answer/batch/batch.h"
#include "policy/answer/cascade/cascade.h"
#include "policy/answer/cascade/compare.h"
#include "policy/answer/extproc/extproc.h"
#include "policy/answer/hook/hook.h"
#include "policy/answer/ollama/ollama.h"
#include "policy/answer/opening/opening.h"
#include "policy/answer/resume/resume.h"
#include "policy/answer/tracing/tracing.h"
#include "policy/config/config.h"
#include "policy/fleet/rack/rack.h"
#include "policy/kv/kvevent/kvevent.h"
#include "policy/kv/kvframe/kvframe.h"
#include "policy/kv/respcmd/respcmd.h"
#include "policy/kv/slots/body.h"
#include "policy/kv/slots/entry.h"
#include "policy/node/engine/engine.h"
#include "policy/node/engine/lastwords.h"
#include "policy/node/engine/models.h"
#include "policy/node/engine/prom.h"
#include "policy/node/engine/usagescan.h"
#include "policy/node/handoff/cached.h"
#include "policy/node/handoff/handoff.h"
#include "policy/node/modelsource/modelsource.h"
#include "policy/node/proto/proto.h"
#include "policy/node/wanted/wanted.h"
#include "policy/power/ipmi/ipmi.h"
#include "policy/power/redfish/redfish.h"
#include "policy/route/queue/queue.h"
#include "policy/route/routing/answerhome.h"
#include "policy/route/routing/document.h"
#include "policy/route/selection/selection.h"
#include "policy/route/session/session.h"
#include "policy/text/body/body.h"
#include "policy/text/modelname/modelname.h"
#include "policy/text/template/template.h"
#include "policy/text/tokenizer/tokenizer.h"
#include "policy/text/toolcall/toolcall.h"
#include "policy/who/auth/auth.h"
#include "policy/who/identity/identity.h"
#include "policy/who/invite/invite.h"
#include "policy/who/jwt/jwt.h"

static const struct cgn_str nothing = {NULL, 0};
static char room[4096];

#define FAILS(call) assert_false(cgn_ok(call))
#define WRITES(call)                      \
	do {                              \
		struct cgn_buf out = {0}; \
		call;                     \
		assert_false(out.bad);    \
		cgn_buf_fini(&out);       \
	} while (0)

static void test_strings(void **state)
{
	uint64_t n;
	struct cgn_arena a;
	struct cgn_str rest = nothing, s = cgn_str_of("a");
	(void)state;
	assert_true(cgn_str_eq_nocase(nothing, nothing));
	assert_true(cgn_str_order(nothing, s) < 0 && cgn_str_order(nothing, nothing) == 0);
	assert_int_equal(cgn_str_trim(nothing).n, 0);
	assert_int_equal(cgn_str_split(&rest, ',').n, 0);
	assert_false(cgn_str_u64(nothing, &n));
	assert_true(cgn_str_copyz(room, sizeof room, nothing));
	char *copy = cgn_str_dupz(nothing);
	assert_string_equal(copy, "");
	free(copy);
	assert_int_equal(cgn_str_distance(nothing, s, 3), 1);
	assert_int_equal(cgn_utf8_prefix(NULL, 0), 0);
	assert_true(cgn_utf8_valid(NULL, 0));
	assert_true(cgn_str_glob(nothing, nothing) && !cgn_str_glob(nothing, s) &&
		cgn_str_glob(CGN_STR("*"), nothing));
	cgn_arena_init(&a, 64);
	assert_non_null(cgn_arena_strz(&a, nothing));
	assert_int_equal(cgn_arena_str(&a, nothing).n, 0);
	cgn_arena_fini(&a);
	WRITES(cgn_buf_str(&out, nothing); cgn_buf_shown(&out, nothing); cgn_buf_eat(&out, 0));
}

static void test_codes_and_sums(void **state)
{
	struct crypto_sum sum;
	struct sum64 s;
	(void)state;
	WRITES(base64_put(&out, nothing); base64url_put(&out, nothing); hex_put(&out, nothing));
	WRITES((void)base64_get(&out, nothing); (void)hex_get(&out, nothing); percent_put(&out, nothing));
	assert_int_equal(percent_get(room, nothing), 0);
	(void)crypto_sha256(nothing);
	(void)crypto_hmac_sha256(nothing, nothing);
	assert_true(crypto_equal(NULL, NULL, 0));
	crypto_sum_begin(&sum);
	crypto_sum_add(&sum, NULL, 0);
	(void)crypto_sum_end(&sum);
	(void)digest_of(nothing);
	(void)digest_chain_root(nothing, nothing, nothing);
	(void)sum64(NULL, 0);
	sum64_begin(&s);
	sum64_add(&s, NULL, 0);
	sum64_copy(&s, NULL, NULL, 0);
}

static cgn_rc toml_nothing(void *arg, const struct toml_node *n, struct cgn_err *err)
{
	(void)arg;
	(void)n;
	(void)err;
	return CGN_OK;
}

static void on_event(void *arg, struct cgn_str name, struct cgn_str data)
{
	(void)arg;
	(void)name;
	(void)data;
	fail_msg("there is no event");
}

static void test_formats(void **state)
{
	struct json_val v;
	struct form_field field = {.name = "model"};
	struct resp_value value;
	struct cgn_str rest = nothing;
	const char *why = NULL;
	size_t n = 0;
	(void)state;
	FAILS(json_parse(nothing, &v, NULL, NULL));
	assert_false(json_key_is(nothing, "a"));
	assert_int_equal(form_boundary(nothing).n, 0);
	FAILS(form_find(nothing, CGN_STR("b"), &field, 1, NULL));
	assert_int_equal(resp_take(&rest, &value, &why), RESP_MORE);
	assert_int_equal(resp_take_head(&rest, &value, &why), RESP_MORE);
	(void)resp_whole(nothing, &n, &why);
	assert_true(cgn_ok(toml_parse("a", nothing, toml_nothing, NULL, NULL)));
	(void)msgpack_in_of(nothing);
	WRITES(struct json_out j = json_out_to(&out); json_put_str(&j, nothing); resp_put_bulk(&out, nothing);
		msgpack_put_str(&out, nothing); sse_event(&out, NULL, nothing));
}

/* Filters of answers pass what comes next as if nothing had come before. */
static void test_filters(void **state)
{
	static const char event[] = "data: {\"model\":\"m\"}\n\n";
	struct sse_scan scan;
	struct toolcall tools;
	struct modelname name;
	struct cached_filter cached;
	struct cascade_strip strip;
	struct cascade_answer answer;
	struct usage_tail tail = {0};
	struct usage usage = {0};
	(void)state;
	sse_scan_init(&scan, 100, on_event, NULL);
	sse_scan_feed(&scan, nothing);
	sse_scan_fini(&scan);
	toolcall_init(&tools, true);
	toolcall_feed(&tools, nothing);
	toolcall_end(&tools);
	toolcall_fini(&tools);
	cascade_answer_init(&answer, 4);
	cascade_answer_feed(&answer, nothing);
	cascade_answer_document(&answer, nothing);
	cascade_answer_fini(&answer);
	usage_tail_add(&tail, NULL, 0);
	assert_int_equal(usage_tail_view(&tail).n, 0);
	usage_tail_fini(&tail);
	assert_false(usagescan_usage(nothing, &usage));
	WRITES(modelname_init(&name, MODELNAME_EVENTS, nothing); modelname_feed(&name, nothing, &out);
		modelname_feed(&name, cgn_str_of(event), &out); modelname_feed(&name, nothing, &out);
		assert_string_equal(cgn_buf_z(&out), "data: {\"model\":}\n\n"));
	WRITES(cached_filter_init(&cached, true);
		assert_int_equal(cached_filter_feed(&cached, nothing, &out), 0);
		(void)cached_filter_feed(&cached, cgn_str_of(event), &out);
		(void)cached_filter_feed(&cached, nothing, &out); cached_filter_end(&cached, &out);
		assert_string_equal(cgn_buf_z(&out), event));
	WRITES(cascade_strip_init(&strip, CASCADE_BLANK_NULL, true);
		cascade_strip_feed(&strip, nothing, &out);
		cascade_strip_feed(&strip, cgn_str_of(event), &out);
		cascade_strip_feed(&strip, nothing, &out); cascade_strip_end(&strip, &out);
		assert_string_equal(cgn_buf_z(&out), event));
}

static void test_openings(void **state)
{
	struct opening o;
	(void)state;
	opening_init(&o, OPENING_JSON, opening_answers(nothing), nothing);
	assert_int_equal(opening_feed(&o, nothing), OPENING_MORE);
	assert_int_equal(opening_blank(&o, nothing), 0);
	assert_int_equal(opening_end(&o), OPENING_EMPTY);
	assert_false(opening_tail_fails(nothing));
	assert_false(opening_tail_breaks_off(nothing, true) || opening_tail_breaks_off(nothing, false));
	(void)opening_tail_ends(nothing, true);
	(void)opening_tail_ends(nothing, false);
	assert_int_equal(opening_part_useful(nothing), 0);
	assert_int_equal(sse_border(nothing, 0), 0);
}

static void test_answers(void **state)
{
	struct json_val body;
	struct cgn_str text =
		CGN_STR("{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
	const struct ollama_time now = {1, 1};
	(void)state;
	assert_true(cgn_ok(json_parse(text, &body, NULL, NULL)));
	struct resume *r = resume_new(PROMPT_CHAT, body);
	WRITES(resume_begin(r, NULL); resume_feed(r, nothing, &out); resume_flush(r, &out);
		resume_give_up(r, RESUME_LACKS_MEMORY, &out); assert_int_equal(out.n, 0));
	resume_free(&r);
	for (int stream = 0; stream < 2; stream++) {
		struct ollama_answer *a = ollama_answer_new(OLLAMA_CHAT, stream == 1, CGN_STR("m"));
		WRITES((void)ollama_answer_begin(a, 200, stream == 1, nothing);
			ollama_answer_feed(a, nothing, &now, &out); ollama_answer_end(a, &now, &out));
		ollama_answer_free(&a);
	}
	assert_int_equal(answerhome_id(nothing).n, 0);
	WRITES(hook_question_close(&out, HOOK_JSON, nothing); hook_question_close(&out, HOOK_EVENTS, nothing);
		hook_question_close(&out, HOOK_LINES, nothing);
		hook_question_close(&out, HOOK_BYTES, nothing));
	struct hook_verdict verdict;
	hook_answer_read(200, nothing, &verdict);
	assert_int_equal(verdict.decision, HOOK_ALLOWED);
	hook_answer_read(500, nothing, &verdict);
	assert_int_equal(verdict.decision, HOOK_FAILED);
	assert_false(cascade_similarity(nothing) > 1);
	(void)cascade_compare(nothing, nothing);
}

static void test_readers_of_requests(void **state)
{
	struct body_facts facts;
	struct body_fault fault;
	struct auth_limits limits;
	struct extproc_message message;
	struct selection_ask ask;
	struct tracing_context tracing;
	struct tracing_rules rules;
	struct batch batch;
	struct batch_line line;
	struct batch_record record;
	struct identity_uri uri;
	struct principal who;
	struct cgn_str rest = nothing;
	const char *code;
	unsigned n;
	uint64_t at;
	const uint64_t random[3] = {1, 2, 3};
	(void)state;
	FAILS(body_read(nothing, &facts, &fault));
	assert_int_equal(auth_bearer(nothing).n, 0);
	assert_false(auth_tenant_ok(nothing) || auth_time_parse(nothing, &at));
	assert_true(auth_models_have(nothing, nothing));
	FAILS(auth_scopes_parse(nothing, &n, NULL));
	assert_true(cgn_ok(auth_limits_parse(nothing, &limits, NULL)));
	assert_false(queue_priority_read(nothing, &n));
	FAILS(extproc_read(nothing, &message, NULL));
	extproc_fini(&message);
	FAILS(selection_read(nothing, &ask, NULL));
	assert_false(selection_id_is_ok(nothing) || session_id_is_ok(nothing));
	(void)session_id_of_user(nothing, room);
	assert_true(cgn_ok(tracing_rules_read(nothing, nothing, &rules, NULL)));
	tracing_begin(&rules, nothing, random, &tracing);
	FAILS(batch_file_read(nothing, &batch, NULL));
	FAILS(batch_line_read(nothing, "/v1/completions", &line, &code, NULL));
	assert_false(batch_record_next(&rest, &record));
	assert_false(identity_uri_parse(nothing, &uri) || identity_uri_part_ok(nothing) ||
		identity_is_local(nothing));
	identity_of_certificate(NULL, "c", nothing, nothing, &who);
	assert_int_equal(apierror_shape_of(nothing), apierror_shape_of(CGN_STR("/")));
	assert_int_equal(ollama_api_of(nothing), ollama_api_of(CGN_STR("/")));
	(void)prompt_api_of(nothing);
	(void)slot_body_read(nothing, nothing);
	(void)route_hash(NULL, 0);
}

static void test_readers_of_machines(void **state)
{
	struct cgn_arena a;
	struct jwt jwt = {0};
	struct jwt_keys keys;
	struct invite_token token;
	struct power_reading reading;
	struct ipmi_dcmi dcmi = {0};
	struct modelsource_list list = {0};
	struct prom_sample sample;
	struct cgn_str rest = nothing, name, value;
	struct proto_generate generate;
	struct proto_chunk chunk;
	struct rack_seen seen;
	struct rack *rack = NULL;
	struct respcmd cmd;
	struct slot_link link;
	struct slot_entry entry;
	struct kvframe_fetch fetch;
	struct kvframe_answer answer;
	struct kvframe_who kvwho;
	struct kvframe_holds holds;
	struct template *template = NULL;
	struct tokenizer *tokenizer = NULL;
	Cognitora__V1__WantedModels *wanted = NULL;
	char path[REDFISH_PATH_BYTES];
	const char *why;
	struct engine_models models;
	struct engine_named named;
	double number;
	int64_t whole;
	(void)state;
	cgn_arena_init(&a, 4096);
	assert_false(jwt_looks_like(nothing));
	FAILS(jwt_read(nothing, &jwt, NULL));
	jwt_fini(&jwt);
	FAILS(jwt_keys_read(nothing, &keys, NULL));
	FAILS(invite_token_read(nothing, &token, NULL));
	assert_false(ipmi_read_sensor(nothing, &reading));
	ipmi_dcmi_line(&dcmi, nothing);
	assert_false(modelsource_path_is_safe(nothing));
	FAILS(modelsource_hub_read(nothing, &list, NULL));
	assert_false(prom_sample_of(nothing, &sample) || prom_next_label(&rest, &name, &value) ||
		prom_is_name(nothing));
	assert_false(prom_sum(nothing, "a", &number) || prom_max(nothing, "a", &number));
	FAILS(engine_models_read(nothing, &a, 4, &models, NULL));
	assert_false(engine_named_judge(nothing, "m", &named));
	(void)engine_kind_guess(nothing);
	(void)engine_line_level(nothing);
	engine_text_keep(room, sizeof room, nothing);
	assert_null(engine_resume_named(nothing));
	assert_true(cgn_ok(proto_generate_read(nothing, &a, &generate, NULL)));
	assert_true(cgn_ok(proto_chunk_read(nothing, &a, &chunk, NULL)));
	assert_false(proto_node_id_ok(nothing));
	FAILS(rack_read("rack.toml", nothing, &rack, NULL));
	rack_free(&rack);
	FAILS(rack_report_read(nothing, &seen, NULL));
	(void)respcmd_find(nothing);
	respcmd_init(&cmd);
	(void)respcmd_step(&cmd, nothing, &why);
	assert_false(respcmd_int(nothing, &whole));
	FAILS(slot_link_read(nothing, &link, NULL));
	FAILS(slot_entry_read(nothing, NULL, &entry, NULL));
	FAILS(kvframe_read_fetch(nothing, &fetch, NULL));
	FAILS(kvframe_read_answer(nothing, &answer, NULL));
	FAILS(kvframe_read_who(nothing, &kvwho, NULL));
	FAILS(kvframe_read_holds(nothing, &holds, NULL));
	assert_false(redfish_path(nothing, path));
	if (cgn_ok(template_compile(nothing, &template, NULL)))
		template_free(&template);
	FAILS(tokenizer_load(nothing, &tokenizer, NULL));
	FAILS(wanted_read(nothing, &wanted, NULL));
	pb_free(&wanted);
	assert_int_equal(handoff_kind_named(nothing), HANDOFF_NONE);
	(void)handoff_fingerprint(HANDOFF_NIXL, nothing);
	WRITES(handoff_term_add(&out, "a", nothing));
	cgn_arena_fini(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_strings),
		cmocka_unit_test(test_codes_and_sums),
		cmocka_unit_test(test_formats),
		cmocka_unit_test(test_filters),
		cmocka_unit_test(test_openings),
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_readers_of_requests),
		cmocka_unit_test(test_readers_of_machines),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
