/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "policy/node/wanted/wanted.h"

#define LOADED   COGNITORA__V1__WANTED_STATE__WANTED_LOADED
#define UNLOADED COGNITORA__V1__WANTED_STATE__WANTED_UNLOADED
#define ASLEEP   COGNITORA__V1__WANTED_STATE__WANTED_ASLEEP
#define NOTHING  COGNITORA__V1__WANTED_STATE__WANTED_AS_CONFIGURED

/* Replace *doc by the document with the change. */
static void change_apply(Cognitora__V1__WantedModels **doc, struct wanted_change c)
{
	struct cgn_buf text = {0};
	struct cgn_err err;
	Cognitora__V1__WantedModels *next = NULL;
	assert_true(cgn_ok(wanted_write(*doc, &c, &text, &err)));
	assert_true(cgn_ok(wanted_read(cgn_buf_view(&text), &next, &err)));
	cgn_buf_fini(&text);
	pb_free(doc);
	*doc = next;
}

static void test_changes(void **state)
{
	Cognitora__V1__WantedModels *doc = NULL;
	const char *const a[] = {"a"}, *const b[] = {"b"};
	(void)state;
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "a"), NOTHING);
	struct wanted_change c = {.name = "m",
		.base = "base",
		.lora_path = "/l",
		.state = LOADED,
		.nodes = a,
		.n_nodes = 1,
		.by = "me",
		.now_ms = 100};
	change_apply(&doc, c);
	assert_int_equal(doc->revision, 100);
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "a"), LOADED);
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "b"), NOTHING);
	c.nodes = b; /* A change of one node leaves the orders of others. */
	change_apply(&doc, c);
	assert_int_equal(doc->revision, 101); /* The clock stood still. */
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "a"), LOADED);
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "b"), LOADED);
	c.n_nodes = 0;
	c.state = UNLOADED;
	change_apply(&doc, c);
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "b"), UNLOADED);
	assert_int_equal(doc->n_models, 1);
	pb_free(&doc);
}

static void adapter_is(const Cognitora__V1__WantedModels *doc, const char *node, const char *base,
	const char *path)
{
	const struct wanted_adapter a = wanted_adapter_on(wanted_find(doc, "m"), node);
	assert_string_equal(a.base, base);
	assert_string_equal(a.path, path);
}

/* A change of named nodes leaves the adapter of the others, whatever it is and in whatever order they were told. */
static void test_a_node_has_its_own_adapter(void **state)
{
	Cognitora__V1__WantedModels *doc = NULL;
	const char *const a[] = {"a"}, *const b[] = {"b"}, *const both[] = {"a", "b"};
	struct wanted_change all =
		{.name = "m", .base = "base", .lora_path = "/1", .state = LOADED, .by = "me", .now_ms = 1};
	struct wanted_change one = all;
	(void)state;
	change_apply(&doc, all);
	one.nodes = a;
	one.n_nodes = 1;
	one.lora_path = "/2";
	change_apply(&doc, one);
	adapter_is(doc, "a", "base", "/2");
	adapter_is(doc, "b", "base", "/1");
	adapter_is(doc, "later", "base", "/1");
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "later"), LOADED);
	one.nodes = b; /* A third version, with another base. */
	one.lora_path = "/3";
	one.base = "other";
	change_apply(&doc, one);
	adapter_is(doc, "a", "base", "/2");
	adapter_is(doc, "b", "other", "/3");
	adapter_is(doc, "later", "base", "/1");
	one = all; /* An unload says the path of all nodes, and the node keeps its own. */
	one.state = UNLOADED;
	one.nodes = a;
	one.n_nodes = 1;
	change_apply(&doc, one);
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "a"), UNLOADED);
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "b"), LOADED);
	adapter_is(doc, "a", "base", "/2");
	adapter_is(doc, "b", "other", "/3");
	one.state = LOADED; /* The same as all nodes have: nothing of its own. */
	change_apply(&doc, one);
	adapter_is(doc, "a", "base", "/1");
	assert_string_equal(wanted_find(doc, "m")->nodes[1]->lora_path, "");
	all.lora_path = "/4";
	change_apply(&doc, all);
	adapter_is(doc, "b", "base", "/4");
	assert_int_equal(wanted_find(doc, "m")->n_nodes, 0);
	pb_free(&doc);
	one.nodes =
		both; /* No other node has it: the next version is that of all nodes, as earlier programs know it. */
	one.n_nodes = 2;
	change_apply(&doc, one);
	one.lora_path = "/5";
	change_apply(&doc, one);
	assert_string_equal(wanted_find(doc, "m")->lora_path, "/5");
	one.n_nodes = 1;
	one.lora_path = "/6";
	change_apply(&doc, one);
	adapter_is(doc, "a", "base", "/6");
	adapter_is(doc, "b", "base", "/5");
	pb_free(&doc);
}

static void test_replicas(void **state)
{
	Cognitora__V1__WantedModels *doc = NULL;
	const char *const a[] = {"a"}, *const b[] = {"b"};
	struct wanted_change c = {.name = "m",
		.base = "",
		.lora_path = "",
		.state = ASLEEP,
		.nodes = a,
		.n_nodes = 1,
		.by = "me",
		.now_ms = 1};
	(void)state;
	change_apply(&doc, c);
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "a"), ASLEEP);
	assert_string_equal(wanted_state_text(ASLEEP), "asleep");
	c.nodes = b;
	c.parked = true; /* The router says it of another node. */
	change_apply(&doc, c);
	assert_false(wanted_find(doc, "m")->nodes[0]->parked);
	assert_true(wanted_find(doc, "m")->nodes[1]->parked);
	c.parked = false;
	c.state = LOADED;
	c.elsewhere_unloaded = true;
	change_apply(&doc, c);
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "a"), UNLOADED);
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "b"), LOADED);
	assert_int_equal(wanted_on(wanted_find(doc, "m"), "later"), UNLOADED);
	pb_free(&doc);
}

/* Fill in a node with one engine of the model "m". */
static void node_make(Cognitora__V1__Node *n, Cognitora__V1__Engine *e, Cognitora__V1__Engine **list,
	char **models, const char *id, const char *kind, bool ready, Cognitora__V1__Rest *rest)
{
	cognitora__v1__node__init(n);
	cognitora__v1__engine__init(e);
	n->id = pb_text(id);
	n->engines = list;
	list[0] = e;
	n->n_engines = 1;
	e->name = pb_text("e");
	e->kind = pb_text(kind);
	e->models = models;
	e->n_models = 1;
	e->ready = ready;
	e->rest = rest;
}

static void test_nodes_of_an_own_model(void **state)
{
	char *models[] = {pb_text("m")};
	Cognitora__V1__Rest rest = COGNITORA__V1__REST__INIT, stopped = COGNITORA__V1__REST__INIT;
	Cognitora__V1__Node n[4];
	Cognitora__V1__Engine e[4], *list[4][1];
	const Cognitora__V1__Node *rank[] = {&n[0], &n[1], &n[2], &n[3]};
	Cognitora__V1__ModelPlace place;
	char why[100];
	struct cgn_err err;
	(void)state;
	rest.state = pb_text("asleep");
	stopped.state = pb_text("stopped");
	node_make(&n[0], &e[0], list[0], models, "a", "vllm", false, &stopped);
	node_make(&n[1], &e[1], list[1], models, "d", "vllm", true, NULL);
	node_make(&n[2], &e[2], list[2], models, "c", "sglang", false, &rest);
	node_make(&n[3], &e[3], list[3], models, "b", "llama_cpp", true, NULL);
	wanted_rank(rank, 4, "m");
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(rank[i]->id[0], "bdca"[i]);
	assert_true(cgn_ok(wanted_able_own(&n[0], "m", ASLEEP, &err)));
	assert_true(cgn_ok(wanted_able_own(&n[3], "m", LOADED, &err)));
	assert_false(cgn_ok(wanted_able_own(&n[3], "m", ASLEEP, &err)));
	assert_non_null(strstr(err.msg, "of kind llama_cpp, which cannot sleep"));
	assert_false(cgn_ok(wanted_able_own(&n[0], "m", UNLOADED, &err)));
	assert_non_null(strstr(err.msg, "does not manage engine e"));
	e[0].managed = true;
	assert_true(cgn_ok(wanted_able_own(&n[0], "m", UNLOADED, &err)));
	assert_false(cgn_ok(wanted_able_own(&n[0], "other", LOADED, &err)));
	assert_non_null(strstr(err.msg, "has the model \"other\""));
	assert_true(wanted_place(&n[2], true, "m", NULL, why, sizeof why, &place));
	assert_string_equal(place.state, "asleep");
	assert_true(wanted_place(&n[1], true, "m", NULL, why, sizeof why, &place));
	assert_string_equal(place.state, "ready");
}

static void test_bad_documents(void **state)
{
	static const char *const bad[] = {"[]", "{\"models\":[{\"name\":\"\",\"baseModel\":\"b\"}]}",
		"{\"models\":[{\"name\":\"m\",\"baseModel\":\"b\",\"nodes\":[{\"id\":\"\"}]}]}"};
	(void)state;
	for (size_t i = 0; i < CGN_COUNT(bad); i++) {
		Cognitora__V1__WantedModels *doc = NULL;
		struct cgn_err err;
		assert_int_equal(wanted_read(cgn_str_of(bad[i]), &doc, &err).code, CGN_INVALID);
		assert_null(doc);
	}
}

/* A model that was unloaded everywhere makes room; one that is wanted does not. */
static void test_a_full_document(void **state)
{
	Cognitora__V1__WantedModels *doc = NULL;
	struct cgn_buf text = {0};
	struct cgn_err err;
	char name[16] = "unwanted";
	struct wanted_change c = {.name = name,
		.base = "base",
		.lora_path = "/l",
		.state = UNLOADED,
		.by = "me"};
	(void)state;
	change_apply(&doc, c);
	c.state = LOADED;
	for (int i = 0; i < WANTED_MAX_MODELS; i++) {
		(void)snprintf(name, sizeof name, "m%d", i);
		change_apply(&doc, c);
	}
	assert_int_equal(doc->n_models, WANTED_MAX_MODELS);
	assert_null(wanted_find(doc, "unwanted"));
	c.name = "more";
	assert_int_equal(wanted_write(doc, &c, &text, &err).code, CGN_OVERLOADED);
	cgn_buf_fini(&text);
	pb_free(&doc);
}

static void test_places(void **state)
{
	char *models[] = {(char[]){"base"}}, why[400];
	Cognitora__V1__Adapter a = COGNITORA__V1__ADAPTER__INIT, *adapters[] = {&a};
	Cognitora__V1__Engine e = COGNITORA__V1__ENGINE__INIT, *engines[] = {&e};
	Cognitora__V1__Node n = COGNITORA__V1__NODE__INIT;
	Cognitora__V1__WantedModel m = COGNITORA__V1__WANTED_MODEL__INIT;
	Cognitora__V1__ModelPlace p;
	struct cgn_err err;
	(void)state;
	e.name = pb_text("e");
	e.kind = pb_text("vllm");
	e.ready = true;
	e.models = models;
	e.n_models = 1;
	n.id = pb_text("a");
	n.engines = engines;
	n.n_engines = 1;
	m.name = pb_text("de");
	m.base_model = pb_text("base");
	m.others = LOADED;
	m.revision = 7;
	assert_true(cgn_ok(wanted_able(&n, "base", &err)));
	assert_true(wanted_place(&n, true, "base", NULL, why, sizeof why, &p));
	assert_string_equal(p.state, "ready");
	assert_true(wanted_place(&n, true, "de", &m, why, sizeof why,
		&p)); /* The agent knows nothing of it yet. */
	assert_string_equal(p.state, "absent");
	a.name = pb_text("de");
	a.state = pb_text("failed");
	a.why = pb_text("no such folder");
	a.revision = 6; /* The agent reports an earlier order. */
	e.adapters = adapters;
	e.n_adapters = 1;
	assert_true(wanted_place(&n, true, "de", &m, why, sizeof why, &p));
	assert_string_equal(p.state, "loading");
	a.revision = 7;
	assert_true(wanted_place(&n, true, "de", &m, why, sizeof why, &p));
	assert_string_equal(p.state, "failed");
	assert_string_equal(p.why, "no such folder");
	assert_true(wanted_place(&n, false, "de", &m, why, sizeof why, &p));
	assert_string_equal(p.state, "unknown");
	e.kind = pb_text("openai_compat");
	e.n_adapters = 0;
	assert_int_equal(wanted_able(&n, "base", &err).code, CGN_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "openai_compat"));
	assert_false(wanted_place(&n, true, "de", &m, why, sizeof why,
		&p)); /* The order is for all nodes that can. */
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_node_has_its_own_adapter),
		cmocka_unit_test(test_replicas), cmocka_unit_test(test_nodes_of_an_own_model),
		cmocka_unit_test(test_changes), cmocka_unit_test(test_bad_documents),
		cmocka_unit_test(test_a_full_document), cmocka_unit_test(test_places)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
