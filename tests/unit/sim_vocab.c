/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a real model instead of the computed vocabulary; and the formats of /tokenize, /detokenize and
 * /apply-template with both. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sim/reply/vectors.h"
#include "sim/request/render.h"
#include "sim/text/vocab.h"

/* A byte-level vocabulary of a few letters, two merges and three added tokens: "hello" is h e ll o, " he" is
 * one token. */
static const char tokenizer[] =
	"{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
	"{\"id\":12,\"content\":\"<|im|>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true},"
	"{\"id\":13,\"content\":\"<bos>\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],"
	"\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
	"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<bos>\",\"type_id\":0}},"
	"{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\",\"type_id\":0}}],"
	"\"special_tokens\":{\"<bos>\":{\"id\":\"<bos>\",\"ids\":[13],\"tokens\":[\"<bos>\"]}}},"
	"\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
	"\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
	"\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
	"\"vocab\":{\"h\":0,\"e\":1,\"l\":2,\"o\":3,\"\\u0120\":4,\"he\":5,\"ll\":6,\"\\u0120he\":7,\"u\":8,\"s\":9,\"r\":10,\"\\u010a\":11},"
	"\"merges\":[\"h e\",\"l l\",\"\\u0120 he\"]}}";
static const char chat[] =
	"{% for m in messages %}<|im|>{{ m.role[0] }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|im|>{% endif %}";

static const struct sim_cfg cfg = {.models = {"sim"},
	.n_models = 1,
	.block_tokens = 4,
	.max_model_len = 1000,
	.max_tokens_default = 64};
static struct cgn_arena arena;
static struct sim_vocab *vocab;
static struct sim_reader *reader;
static struct sim_refusal no;
static struct cgn_buf out;

static void load_vocab(const char *template)
{
	struct cgn_err err = {0};
	sim_reader_free(&reader);
	sim_vocab_free(&vocab);
	if (!cgn_ok(sim_vocab_new(cgn_str_of(tokenizer), cgn_str_of(template), &vocab, &err)))
		fail_msg("%s", err.msg);
	reader = sim_reader_new(vocab);
}

static const char *ask_route(sim_vector_fn fn, struct sim_reader *with, const char *body)
{
	const struct sim_request_env env = {&cfg, &arena, with, 0};
	const struct sim_vector_call v = {&env, cgn_str_of(body), "id", 0};
	out.n = 0;
	no = (struct sim_refusal){0};
	bool ok = fn(&v, &out, &no);
	cgn_arena_reset(&arena);
	if (!ok)
		return NULL;
	return cgn_buf_z(&out);
}

#define SAYS(fn, with, body, want) assert_string_equal(ask_route(fn, with, body), want)

static void assert_refuses(sim_vector_fn fn, struct sim_reader *with, const char *body, const char *part)
{
	assert_null(ask_route(fn, with, body));
	assert_int_equal(no.status, 400);
	if (strstr(no.msg, part) == NULL)
		fail_msg("\"%s\" lacks \"%s\"", no.msg, part);
}

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]"

static void texts_are_cut_by_the_model(void **state)
{
	(void)state;
	load_vocab(chat);
	assert_int_equal(sim_vocab_size(vocab), 14);
	SAYS(sim_tokenize, reader, "{\"prompt\":\"hello he\"}",
		"{\"count\":5,\"max_model_len\":1000,\"tokens\":[13,5,6,3,7],\"token_strs\":null}");
	SAYS(sim_tokenize, reader,
		"{\"prompt\":\"hello he\",\"add_special_tokens\":false,\"return_token_strs\":true}",
		"{\"count\":4,\"max_model_len\":1000,\"tokens\":[5,6,3,7],\"token_strs\":[\"he\",\"ll\",\"o\",\" he\"]}");
	SAYS(sim_tokenize, reader, "{\"content\":\"<|im|>he\"}", "{\"tokens\":[12,5]}");
	SAYS(sim_tokenize, reader, "{\"content\":\"he\",\"add_special\":true}", "{\"tokens\":[13,5]}");
	SAYS(sim_detokenize, reader, "{\"tokens\":[12,5,6,3,11,7]}", "{\"prompt\":\"<|im|>hello\\n he\"}");
	assert_refuses(sim_detokenize, reader, "{\"tokens\":[14]}", "14 is not a token id");
	assert_refuses(sim_tokenize, reader, "{\"prompt\":[1,2]}", "a string is required");
	assert_refuses(sim_tokenize, reader, "{\"content\":5}", "a string is required");
}

static void chats_are_rendered_by_the_template(void **state)
{
	(void)state;
	load_vocab(chat);
	SAYS(sim_apply_template, reader, "{" USER "}", "{\"prompt\":\"<|im|>uhello<|im|>\"}");
	SAYS(sim_apply_template, reader, "{" USER ",\"add_generation_prompt\":false}",
		"{\"prompt\":\"<|im|>uhello\"}");
	SAYS(sim_tokenize, reader, "{" USER "}",
		"{\"count\":6,\"max_model_len\":1000,\"tokens\":[12,8,5,6,3,12],\"token_strs\":null}");
	SAYS(sim_tokenize, reader, "{" USER ",\"add_special_tokens\":true,\"add_generation_prompt\":false}",
		"{\"count\":6,\"max_model_len\":1000,\"tokens\":[13,12,8,5,6,3],\"token_strs\":null}");
	assert_refuses(sim_tokenize, reader, "{\"messages\":5}", "no prompt in the body");
	load_vocab("{{ raise_exception('not so') }}");
	assert_refuses(sim_tokenize, reader, "{" USER "}", "not so");
	load_vocab(
		"{\"bos_token\":{\"content\":\"<bos>\"},\"eos_token\":\"<|im|>\",\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"x\"},"
		"{\"name\":\"default\",\"template\":\"{{ bos_token }}he{{ x }}{{ eos_token }}\"}]}");
	SAYS(sim_apply_template, reader, "{" USER ",\"chat_template_kwargs\":{\"x\":\"ll\"}}",
		"{\"prompt\":\"hell<|im|>\"}");
	/* llama.cpp leaves the first marker to its tokenizer, so both ways give one marker. */
	SAYS(sim_tokenize, reader, "{\"content\":\"hell<|im|>\",\"add_special\":true}",
		"{\"tokens\":[13,5,6,12]}");
	SAYS(sim_tokenize, reader, "{" USER ",\"chat_template_kwargs\":{\"x\":\"ll\"}}",
		"{\"count\":4,\"max_model_len\":1000,\"tokens\":[13,5,6,12],\"token_strs\":null}");
	load_vocab("");
	assert_refuses(sim_apply_template, reader, "{" USER "}", "--chat-template");
}

static void requests_hash_what_tokenize_says(void **state)
{
	(void)state;
	static const char *const bodies[] = {"{" USER "}", "{" USER ",\"add_generation_prompt\":false}",
		"{" USER ",\"chat_template_kwargs\":{\"x\":1}}"};
	load_vocab(chat);
	struct sim_cfg keeping = cfg;
	keeping.kv_digests = true;
	for (size_t i = 0; i < CGN_COUNT(bodies); i++) {
		static struct sim_request a;
		char ids[200];
		struct cgn_buf want = cgn_buf_over(ids, sizeof ids);
		const struct sim_request_env env = {&keeping, &arena, reader, 0};
		assert_true(sim_request_parse(&env, SIM_CHAT, cgn_str_of(bodies[i]), &a, &no));
		const struct sim_chain *c = &a.prompts[0];
		cgn_buf_putz(&want, "\"tokens\":[");
		for (uint64_t k = 0; k < c->n_tokens; k++)
			cgn_buf_fmt(&want, "%s%u", k > 0 ? "," : "", c->contents->tokens[k]);
		assert_non_null(strstr(ask_route(sim_tokenize, reader, bodies[i]), cgn_buf_z(&want)));
		sim_request_fini(&a);
	}
}

static void pictures_are_patches(void **state)
{
	(void)state;
	load_vocab(chat);
	static const char body[] =
		"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"hello\"},"
		"{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:x\"}}]}],\"return_token_strs\":true}";
	const char *z = ask_route(sim_tokenize, reader, body);
	if (z == NULL)
		fail_msg("%s", no.msg);
	/* Image, new line, text, in vLLM's order. */
	assert_non_null(strstr(z, "{\"count\":263,"));
	assert_non_null(strstr(z, "\"<|image|>\",\"<|image|>\""));
	assert_non_null(strstr(z, "\"ll\",\"o\",\"<|im|>\"]"));
	/* Text that resembles a marker stays text. */
	char want[300];
	assert_true(cgn_str_copyz(want, sizeof want,
		cgn_str_of(ask_route(sim_tokenize, reader,
			"{\"prompt\":\"<|im|>uhe cgnmedium00 he\",\"add_special_tokens\":false}"))));
	SAYS(sim_tokenize, reader,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"he cgnmedium00 he\"}],\"add_generation_prompt\":false}",
		want);
}

static void answers_have_ids_too(void **state)
{
	(void)state;
	load_vocab(chat);
	assert_int_equal(sim_reader_word(reader, CGN_STR(" hello")), 7);
	assert_int_equal(sim_reader_word(reader, CGN_STR("")), 0);
	struct sim_text t;
	struct sim_plan plan;
	struct sim_chain c;
	sim_chain_init(&c, &(struct sim_chain_cfg){.block_tokens = 4, .max_tokens = 100, .keep = true});
	sim_text_script(&t, CGN_STR("he he us"));
	assert_true(sim_plan_make(t, &(struct sim_limits){.max_tokens = 50}, reader, &c, &plan));
	assert_int_equal(c.n_tokens, plan.n_tokens);
	assert_int_equal(c.contents->tokens[0], 5);
	assert_int_equal(c.contents->tokens[1], 7);
	sim_chain_fini(&c);
}

static void without_files_words_are_tokens(void **state)
{
	(void)state;
	SAYS(sim_tokenize, NULL, "{\"content\":\"<|user|>AB<|end|>\"}",
		"{\"tokens\":[50000001,24714626,24714627,50000004]}");
	SAYS(sim_tokenize, NULL, "{\"content\":\"<|end\",\"parse_special\":true}",
		"{\"tokens\":[60,124,5113]}");
	/* llama.cpp's way, with the template first, gives the same as vLLM's. */
	SAYS(sim_apply_template, NULL, "{" USER "}", "{\"prompt\":\"<|user|>hello<|end|><|assistant|>\"}");
	SAYS(sim_tokenize, NULL, "{\"content\":\"<|user|>hello<|end|><|assistant|>\"}",
		"{\"tokens\":[50000001,3753492,50000004,50000002]}");
	SAYS(sim_tokenize, NULL, "{" USER ",\"return_token_strs\":true}",
		"{\"count\":4,\"max_model_len\":1000,\"tokens\":[50000001,3753492,50000004,50000002],"
		"\"token_strs\":[\"<|user|>\",\"hello\",\"<|end|>\",\"<|assistant|>\"]}");
	SAYS(sim_tokenize, NULL, "{" USER ",\"add_generation_prompt\":false}",
		"{\"count\":3,\"max_model_len\":1000,\"tokens\":[50000001,3753492,50000004],\"token_strs\":null}");
	SAYS(sim_tokenize, NULL, "{\"prompt\":\"\"}",
		"{\"count\":0,\"max_model_len\":1000,\"tokens\":[],\"token_strs\":null}");
	SAYS(sim_detokenize, NULL, "{\"tokens\":[50000001,3753492]}", "{\"prompt\":\"<|user|>hello\"}");
}

static void files_can_be_wrong(void **state)
{
	(void)state;
	struct cgn_err err = {0};
	struct sim_vocab *v = NULL;
	assert_false(cgn_ok(sim_vocab_new(CGN_STR("{"), CGN_STR(""), &v, &err)));
	assert_false(cgn_ok(sim_vocab_new(cgn_str_of(tokenizer), CGN_STR("{% if %}"), &v, &err)));
	assert_int_equal(err.code, CGN_INVALID);
	assert_false(
		cgn_ok(sim_vocab_new(cgn_str_of(tokenizer), CGN_STR("{\"bos_token\":\"x\"}"), &v, &err)));
	assert_non_null(strstr(err.msg, "chat_template"));
	assert_false(cgn_ok(sim_vocab_new(cgn_str_of(tokenizer), CGN_STR("{\"bos_token\""), &v, &err)));
	assert_null(v);
}

static void characters_are_decoded_too(void **state)
{
	(void)state;
	static const char file[] =
		"{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,"
		"\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\u2581\"},\"content\":\" \"},"
		"{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},"
		"\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"byte_fallback\":true,\"fuse_unk\":true,"
		"\"vocab\":{\"<unk>\":0,\"\\u2581\":1,\"a\":2,\"<0x0A>\":3,\"\\u2581a\":4},\"merges\":[\"\\u2581 a\"]}}";
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_err err = {0};
	struct sim_vocab *v = NULL;
	if (!cgn_ok(sim_vocab_new(cgn_str_of(file), CGN_STR(""), &v, &err)))
		fail_msg("%s", err.msg);
	for (uint32_t id = 1; id < 5; id++)
		assert_true(sim_vocab_text(v, id, &text));
	assert_false(sim_vocab_text(v, 5, &text));
	assert_string_equal(cgn_buf_z(&text), " a\n a");
	sim_vocab_free(&v);
}

static int world_fini(void **state)
{
	(void)state;
	sim_reader_free(&reader);
	sim_vocab_free(&vocab);
	cgn_buf_fini(&out);
	cgn_arena_fini(&arena);
	return 0;
}

int main(void)
{
	cgn_arena_init(&arena, 1 << 20);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts_are_cut_by_the_model),
		cmocka_unit_test(chats_are_rendered_by_the_template),
		cmocka_unit_test(requests_hash_what_tokenize_says),
		cmocka_unit_test(pictures_are_patches),
		cmocka_unit_test(answers_have_ids_too),
		cmocka_unit_test(without_files_words_are_tokens),
		cmocka_unit_test(files_can_be_wrong),
		cmocka_unit_test(characters_are_decoded_too),
	};
	return cmocka_run_group_tests(tests, NULL, world_fini);
}
