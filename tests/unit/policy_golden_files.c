/* SPDX-License-Identifier: Apache-2.0 */
/* Documents and files, against those of the versions that are kept (tests/golden). Members, names and lines that a later
 * version adds are read; other formats are refused with a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "golden_world.h"

#include "policy/answer/batch/batch.h"
#include "policy/answer/cascade/known.h"
#include "policy/fleet/autoscale/season.h"
#include "policy/node/proto/proto.h"
#include "policy/node/wanted/wanted.h"
#include "policy/route/routing/document.h"
#include "policy/who/auth/auth.h"
#include "policy/who/billing/billing.h"
#include "policy/who/budget/budget.h"
#include "policy/who/invite/invite.h"

#define NOW UINT64_C(1764316800) /* 2025-11-28T08:00:00Z */
#define DAY (NOW / 86400)

/* ---- documents in JSON ---- */

static void node_make(struct cgn_buf *out)
{
	char *models[] = {pb_text("m")};
	Cognitora__V1__Engine e = COGNITORA__V1__ENGINE__INIT, *engines[] = {&e};
	Cognitora__V1__Swap swap = COGNITORA__V1__SWAP__INIT;
	Cognitora__V1__KvStore kv = COGNITORA__V1__KV_STORE__INIT;
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	swap.state = pb_text("loadable");
	swap.memory_bytes = UINT64_C(1) << 40;
	e.name = pb_text("e0");
	e.kind = pb_text("sim");
	e.models = models;
	e.n_models = 1;
	e.ready = true;
	e.slots = 8;
	e.swap = &swap;
	kv.quic_address = pb_text("10.0.0.1:7091");
	kv.rack = pb_text("r1");
	n.id = pb_text("node-a");
	n.address = pb_text("10.0.0.1:7080");
	n.role = COGNITORA__V1__ROLE__ROLE_PREFILL;
	n.version = pb_text("0.1.0");
	n.started_unix_ms = NOW * 1000;
	n.engines = engines;
	n.n_engines = 1;
	n.kv = &kv;
	proto_node_to_json(&n, out);
}

static void node_is(struct cgn_str json, Cognitora__V1__Role role)
{
	Cognitora__V1__Node *n = NULL;
	struct cgn_err err = {.msg = ""};
	must_work(proto_node_from_json(json, &n, &err), &err);
	assert_string_equal(n->id, "node-a");
	assert_string_equal(n->address, "10.0.0.1:7080");
	assert_true(n->role == role && n->started_unix_ms == NOW * 1000 && n->n_engines == 1);
	assert_string_equal(n->engines[0]->models[0], "m");
	assert_true(n->engines[0]->ready && n->engines[0]->slots == 8);
	assert_non_null(n->engines[0]->swap);
	assert_true(n->engines[0]->swap->memory_bytes == UINT64_C(1) << 40);
	assert_non_null(n->kv);
	assert_string_equal(n->kv->rack, "r1");
	proto_node_free(&n);
}

static void node_check(struct cgn_str json)
{
	node_is(json, COGNITORA__V1__ROLE__ROLE_PREFILL);
}

static void wanted_make(struct cgn_buf *out)
{
	static const char *const nodes[] = {"node-a"};
	struct cgn_err err = {.msg = ""};
	const struct wanted_change c = {.name = "adapter",
		.base = "m",
		.lora_path = "/loras/adapter",
		.state = COGNITORA__V1__WANTED_STATE__WANTED_LOADED,
		.nodes = nodes,
		.n_nodes = 1,
		.by = "ann",
		.now_ms = NOW * 1000};
	must_work(wanted_write(NULL, &c, out, &err), &err);
}

static void wanted_check(struct cgn_str json)
{
	CGN_ON_EXIT(pb_free) Cognitora__V1__WantedModels *doc = NULL;
	struct cgn_err err = {.msg = ""};
	must_work(wanted_read(json, &doc, &err), &err);
	const Cognitora__V1__WantedModel *m = wanted_find(doc, "adapter");
	assert_non_null(m);
	assert_string_equal(m->lora_path, "/loras/adapter");
	assert_true(wanted_on(m, "node-a") == COGNITORA__V1__WANTED_STATE__WANTED_LOADED);
}

static void policy_make(struct cgn_buf *out)
{
	const struct route_document d = {.has_policy = true,
		.policy = ROUTE_WEIGHTED,
		.has_weights = true,
		.weights = {0.5, 0.3, 0.1, 0.1}};
	route_document_write(&d, out);
}

static void policy_check(struct cgn_str json)
{
	struct route_document d;
	struct cgn_err err = {.msg = ""};
	must_work(route_document_read(json, &d, &err), &err);
	assert_true(d.has_policy && d.policy == ROUTE_WEIGHTED && d.has_weights);
	assert_true(d.weights.kv == 0.5 && d.weights.load == 0.3);
}

/* ---- lines ---- */

static struct invite invite_sample(void)
{
	struct invite v = {.id = "00000000000000a1",
		.role = "agent",
		.node = "node-a",
		.secret = crypto_sha256(CGN_STR("secret")),
		.ends = (int64_t)NOW + 3600,
		.days = 365};
	return v;
}

static void invites_make(struct cgn_buf *out)
{
	const struct invite v = invite_sample();
	struct cgn_err err = {.msg = ""};
	must_work(invite_add(CGN_STR(""), &v, (int64_t)NOW, out, &err), &err);
}

static void invites_check(struct cgn_str text)
{
	const struct invite_request rq = {CGN_STR("00000000000000a1"), CGN_STR("agent"), CGN_STR("node-a"),
		crypto_sha256(CGN_STR("secret")), crypto_sha256(CGN_STR("key"))};
	struct invite found;
	struct cgn_err err = {.msg = ""};
	bool again = true;
	must_work(invite_judge(text, &rq, (int64_t)NOW, &found, &again, &err), &err);
	assert_true(!again && found.days == 365 && found.ends == (int64_t)NOW + 3600);
}

static void token_make(struct cgn_buf *out)
{
	const struct invite_token t = {.role = CGN_STR("agent"),
		.node = CGN_STR("node-a"),
		.id = CGN_STR("00000000000000a1"),
		.address = CGN_STR("10.0.0.9:9093"),
		.secret = {1, 2, 3},
		.ca = {4, 5, 6}};
	invite_token_put(&t, out);
}

static void token_check(struct cgn_str text)
{
	struct invite_token t;
	struct cgn_err err = {.msg = ""};
	must_work(invite_token_read(text, &t, &err), &err);
	text_is(t.address, "10.0.0.9:9093");
	assert_true(t.secret[2] == 3 && t.ca[2] == 6);
}

static void keys_make(struct cgn_buf *out)
{
	const struct auth_key key = {.id = "3f9a12c4",
		.hash = {1, 2, 3},
		.scopes = AUTH_CHAT | AUTH_ADMIN,
		.created = "2026-01-31T08:00:00Z",
		.tenant = "acme",
		.name = "laptop of Ann",
		.role = "operator",
		.models = "llama-*,qwen",
		.limits = "rps=5,5USD/day",
		.expires = NOW + 86400};
	cgn_buf_putz(out, "# API keys\n");
	auth_key_format(&key, out);
}

static void keys_check(struct cgn_str text)
{
	struct auth_keys *k = NULL;
	struct auth_key key;
	const struct digest seed = {.b = {0}};
	struct cgn_err err = {.msg = ""};
	must_work(auth_keys_parse("keys", text, &seed, &k, &err), &err);
	assert_int_equal(auth_keys_count(k), 1);
	auth_keys_at(k, 0, &key);
	assert_string_equal(key.id, "3f9a12c4");
	assert_string_equal(key.tenant, "acme");
	assert_string_equal(key.name, "laptop of Ann");
	assert_string_equal(key.role, "operator");
	assert_string_equal(key.models, "llama-*,qwen");
	assert_string_equal(key.limits, "rps=5,5USD/day");
	assert_true(key.scopes == (AUTH_CHAT | AUTH_ADMIN) && key.expires == NOW + 86400 && key.hash[2] == 3);
	auth_keys_unref(&k);
}

static void season_make(struct cgn_buf *out)
{
	static struct autoscale_season s;
	memset(&s, 0, sizeof s);
	for (uint64_t t = 0; t < 3 * AUTOSCALE_SEASON_SLOT; t++)
		(void)autoscale_season_note(&s, 2.5, NOW + t);
	autoscale_season_put(&s, out);
}

static void season_check(struct cgn_str text)
{
	static struct autoscale_season s;
	struct cgn_err err = {.msg = ""};
	unsigned seen = 0;
	memset(&s, 0, sizeof s);
	while (text.n > 0)
		must_work(autoscale_season_take(&s, cgn_str_split(&text, '\n'), &err), &err);
	for (size_t i = 0; i < AUTOSCALE_SEASON_DAY; i++)
		seen += s.day[i].seen > 0 && s.day[i].load > 2000 && s.day[i].load <= 2500;
	assert_true(seen >= 2);
}

static void cascade_make(struct cgn_buf *out)
{
	static struct calibration_known k;
	k = (struct calibration_known){.small = "small",
		.large = "large",
		.basis = 17,
		.same = 30,
		.different = 30};
	calibration_known_mark(&k, 0, 5);
	calibration_known_mark(&k, 1, 6);
	for (unsigned i = 0; i < 60; i++)
		(void)calibration_add(&k.calibration, i / 64.0, i >= 30);
	calibration_known_put(&k, out);
}

static void cascade_check(struct cgn_str text)
{
	static struct calibration_known k;
	struct cgn_err err = {.msg = ""};
	must_work(calibration_known_take(&text, &k, &err), &err);
	text_is(cgn_str_of(k.small), "small");
	text_is(cgn_str_of(k.large), "large");
	assert_true(text.n == 0 && k.basis == 17 && k.same == 30 && k.different == 30);
	assert_true(k.marks[0][0] == 5 && k.marks[1][0] == 6 && k.calibration.n == 60);
	assert_true(calibration_error_of(&k.calibration.curve, 0.1) < 0.1);
	assert_true(calibration_error_of(&k.calibration.curve, 0.9) > 0.9);
}

/* ---- sealed files ---- */

static void budgets_make(struct cgn_buf *out)
{
	struct budget_book *b = budget_book_new();
	struct budget_set set = {.n = 0};
	struct budget_answer answers[BUDGET_MAX];
	struct budget_held held;
	struct cgn_err err = {.msg = ""};
	const struct budget_amounts want = {{1, 300, 4000, 5}};
	must_work(budget_set_add(&set, CGN_STR("1000 tokens/day"), &err), &err);
	assert_true(budget_book_take(b, CGN_STR("t:acme"), &set, NOW, &want, answers, &held));
	budget_book_settle(b, CGN_STR("t:acme"), &held, &want); /* Reservations are not in the file. */
	budget_book_write(b, out);
	budget_book_free(&b);
}

static CGN_RC budgets_read(struct cgn_str text, struct budget_book *b, struct cgn_err *err)
{
	return budget_book_read(b, text, err);
}

static void budgets_check(struct cgn_str text)
{
	struct budget_book *b = budget_book_new();
	struct cgn_err err = {.msg = ""};
	must_work(budgets_read(text, b, &err), &err);
	const struct budget_account *a = budget_book_find(b, CGN_STR("t:acme"));
	assert_non_null(a);
	assert_int_equal(a->spells[BUDGET_DAY][0].spent.v[BUDGET_TOKENS], 300);
	assert_int_equal(a->spells[BUDGET_DAY][0].number, budget_window_at(BUDGET_DAY, NOW));
	budget_book_free(&b);
}

static CGN_RC budgets_try(struct cgn_str text, struct cgn_err *err)
{
	struct budget_book *b = budget_book_new();
	cgn_rc rc = budgets_read(text, b, err);
	budget_book_free(&b);
	return rc;
}

static void usage_make(struct cgn_buf *out)
{
	struct billing *l = billing_new();
	const struct billing_names names = {CGN_STR("acme"), CGN_STR("3f9a12c4"), CGN_STR("a model")};
	billing_add(l, DAY * 24 + 8, &names, &(struct billing_amounts){1, 2, 3, 4, 5, 6, 7});
	billing_write_day(l, DAY, out);
	billing_free(&l);
}

static CGN_RC usage_try(struct cgn_str text, struct cgn_err *err)
{
	struct billing *l = billing_new();
	cgn_rc rc = billing_read_day(l, DAY, text, err);
	billing_free(&l);
	return rc;
}

static void usage_check(struct cgn_str text)
{
	struct billing *l = billing_new();
	struct cgn_buf again = {.n = 0};
	struct cgn_err err = {.msg = ""};
	must_work(billing_read_day(l, DAY, text, &err), &err);
	billing_write_day(l, DAY, &again);
	assert_non_null(strstr(cgn_buf_z(&again), " acme 3f9a12c4 a%20model 1 2 3 4 5 6 7\n"));
	cgn_buf_fini(&again);
	billing_free(&l);
}

static void batch_make(struct cgn_buf *out)
{
	struct batch b = {.id = "batch_1",
		.tenant = "acme",
		.key = "3f9a12c4",
		.endpoint = "/v1/chat/completions",
		.window = "24h",
		.input = "file-1",
		.output = "file-2",
		.has_output = true,
		.status = BATCH_IN_PROGRESS,
		.ending = BATCH_COMPLETED,
		.total = 5,
		.completed = 3,
		.failed = 1};
	b.times[BATCH_CREATED_AT] = NOW;
	batch_fault_add(&b, "invalid_json_line", 2, "no JSON");
	batch_file_put(&b, out);
}

static CGN_RC batch_try(struct cgn_str text, struct cgn_err *err)
{
	struct batch b = {.n_faults = 0};
	CGN_TRY(batch_file_read(text, &b, err));
	batch_fini(&b);
	return CGN_OK;
}

static void batch_check(struct cgn_str text)
{
	struct batch b = {.n_faults = 0};
	struct cgn_err err = {.msg = ""};
	must_work(batch_file_read(text, &b, &err), &err);
	assert_string_equal(b.id, "batch_1");
	assert_string_equal(b.tenant, "acme");
	assert_string_equal(b.output, "file-2");
	assert_true(b.status == BATCH_IN_PROGRESS && b.ending == BATCH_COMPLETED && b.has_output);
	assert_true(b.total == 5 && b.completed == 3 && b.failed == 1 && b.n_faults == 1);
	assert_true(b.times[BATCH_CREATED_AT] == NOW);
	batch_fini(&b);
}

static void journal_make(struct cgn_buf *out)
{
	batch_record_put(&(struct batch_record){.line = 0, .text = CGN_STR("{\"one\":1}\n")}, out);
	batch_record_put(&(struct batch_record){.line = 3, .failed = true, .text = CGN_STR("{\"two\":2}\n")},
		out);
}

static void journal_check(struct cgn_str text)
{
	struct batch_record r;
	assert_true(batch_record_next(&text, &r) && r.line == 0 && !r.failed);
	text_is(r.text, "{\"one\":1}\n");
	assert_true(batch_record_next(&text, &r) && r.line == 3 && r.failed);
	assert_true(text.n == 0 && !batch_record_next(&text, &r));
}

static const struct golden_sample samples[] = {{"node.json", node_make, node_check},
	{"models.json", wanted_make, wanted_check}, {"policy.json", policy_make, policy_check},
	{"invites.txt", invites_make, invites_check}, {"invite_token.txt", token_make, token_check},
	{"api_keys.txt", keys_make, keys_check}, {"season.txt", season_make, season_check},
	{"cascade.txt", cascade_make, cascade_check, .unknown_to = "0.1.0"},
	{"budgets.txt", budgets_make, budgets_check}, {"usage.txt", usage_make, usage_check},
	{"batch.txt", batch_make, batch_check}, {"batch_journal.txt", journal_make, journal_check}};

static void kept_versions_are_understood_and_understand(void **state)
{
	(void)state;
	golden_samples(samples, CGN_COUNT(samples));
}

/* ---- later versions ---- */

/* Append |json| with another member in front, and with |from| replaced by |to| (NULL: nothing is). */
static void json_changed(const struct cgn_buf *json, const char *from, const char *to, struct cgn_buf *out)
{
	struct cgn_buf copy = {.n = 0};
	cgn_buf_str(&copy, cgn_buf_view(json));
	char *at = from != NULL ? strstr(cgn_buf_z(&copy), from) : NULL;
	assert_true((from == NULL) == (at == NULL));
	cgn_buf_putz(out, "{\"newMember\":{\"a\":[1,2]},");
	if (at == NULL) {
		cgn_buf_putz(out, cgn_buf_z(&copy) + 1);
	} else {
		cgn_buf_add(out, copy.p + 1, (size_t)(at - copy.p) - 1);
		cgn_buf_putz(out, to);
		cgn_buf_putz(out, at + strlen(from));
	}
	cgn_buf_fini(&copy);
}

static void unknown_members_and_names_of_documents_are_skipped(void **state)
{
	(void)state;
	struct cgn_buf json = {.n = 0}, later = {.n = 0};
	node_make(&json);
	json_changed(&json, NULL, NULL, &later);
	node_check(cgn_buf_view(&later));
	later.n = 0;
	json_changed(&json, "ROLE_PREFILL", "ROLE_OF_A_LATER_VERSION", &later);
	node_is(cgn_buf_view(&later), COGNITORA__V1__ROLE__ROLE_BOTH);
	json.n = later.n = 0;
	wanted_make(&json);
	json_changed(&json, NULL, NULL, &later);
	wanted_check(cgn_buf_view(&later));
	cgn_buf_fini(&json);
	cgn_buf_fini(&later);
}

static void unknown_lines_are_passed_over(void **state)
{
	(void)state;
	struct cgn_buf b = {.n = 0};
	cgn_buf_putz(&b, "v2 of a later version\n");
	invites_make(&b);
	invites_check(cgn_buf_view(&b));
	cgn_buf_fini(&b);
}

static void later_formats_of_files_are_refused_and_named(void **state)
{
	(void)state;
	const struct {
		void (*make)(struct cgn_buf *out);
		cgn_rc (*read)(struct cgn_str text, struct cgn_err *err);
	} files[] = {{budgets_make, budgets_try}, {usage_make, usage_try}, {batch_make, batch_try}};
	for (size_t i = 0; i < CGN_COUNT(files); i++) {
		struct cgn_buf b = {.n = 0};
		struct cgn_err err = {.msg = ""};
		files[i].make(&b);
		char *format = strchr(cgn_buf_z(&b), '\n') - 1;
		assert_int_equal(*format, '1');
		*format = '2';
		must_refuse(files[i].read(cgn_buf_view(&b), &err), &err,
			"its format is 2, of a later version");
		cgn_buf_fini(&b);
	}
}

static void later_documents_are_refused_and_named(void **state)
{
	(void)state;
	struct cgn_buf b = {.n = 0};
	struct cgn_err err = {.msg = ""};
	struct invite_token token;
	struct route_document d;
	token_make(&b);
	b.p[4] = '2';
	must_refuse(invite_token_read(cgn_buf_view(&b), &token, &err), &err, "cgnj1");
	b.n = 0;
	cgn_buf_putz(&b, "{\"policy\":\"kv\",\"newMember\":1}");
	must_refuse(route_document_read(cgn_buf_view(&b), &d, &err), &err, "newMember");
	cgn_buf_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(kept_versions_are_understood_and_understand),
		cmocka_unit_test(unknown_members_and_names_of_documents_are_skipped),
		cmocka_unit_test(unknown_lines_are_passed_over),
		cmocka_unit_test(later_formats_of_files_are_refused_and_named),
		cmocka_unit_test(later_documents_are_refused_and_named)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
