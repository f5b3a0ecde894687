/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/core/err.h"
#include "policy/node/engine/lastwords.h"

static void lines_have_the_levels_of_their_formats(void **state)
{
	(void)state;
	static const struct {
		const char *line;
		enum engine_line_level level;
	} rows[] = {
		/* vLLM 0.32 */
		{"(EngineCore pid=4711) ERROR 11-22 10:00:00 [core.py:936] EngineCore failed to start.",
			ENGINE_LINE_ERROR},
		{"(APIServer pid=7) WARNING 11-22 10:00:00 [config.py:1] slow", ENGINE_LINE_WARNING},
		{"(APIServer pid=7) INFO 11-22 10:00:00 [api_server.py:1] ERROR in no way",
			ENGINE_LINE_PLAIN},
		/* vLLM 0.10 */
		{"ERROR 07-22 10:00:00 [core.py:586] failed", ENGINE_LINE_ERROR},
		/* uvicorn, Python's logging */
		{"ERROR:    [Errno 98] error while attempting to bind on address", ENGINE_LINE_ERROR},
		{"CRITICAL:root:it is over", ENGINE_LINE_ERROR},
		{"INFO:     Started server process [4711]", ENGINE_LINE_PLAIN},
		/* llama.cpp b11669 */
		{"0.00.007.501 E srv         start: couldn't bind HTTP server socket", ENGINE_LINE_ERROR},
		{"0.00.007.419 W srv  llama_server: security: no API key is set", ENGINE_LINE_WARNING},
		{"0.00.002.194 I srv  llama_server: initializing ...", ENGINE_LINE_PLAIN},
		{"error: invalid argument: --no-such-flag", ENGINE_LINE_ERROR},
		/* TensorRT-LLM, glog */
		{"[11/22/2025-10:00:00] [TRT-LLM] [E] Failed to load", ENGINE_LINE_ERROR},
		{"[11/22/2025-10:00:00] [TRT-LLM] [W] Odd", ENGINE_LINE_WARNING},
		{"E1122 10:00:00.000000 4711 file.cc:1] no", ENGINE_LINE_ERROR},
		/* SGLang 0.5.23 */
		{"[11-22 10:00:00 TP0] Prefill batch, #new-seq: 1", ENGINE_LINE_PLAIN},
		{"Traceback (most recent call last):", ENGINE_LINE_ERROR},
		{"\033[31mERROR 07-22 10:00:00 [a.py:1] red\033[0m", ENGINE_LINE_ERROR},
		{"", ENGINE_LINE_PLAIN},
		{"E", ENGINE_LINE_PLAIN},
		{"0.0 E", ENGINE_LINE_PLAIN},
		{"ERROR", ENGINE_LINE_PLAIN},
		{"ERROR handling is fine", ENGINE_LINE_PLAIN},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++)
		if (engine_line_level(cgn_str_of(rows[i].line)) != rows[i].level)
			fail_msg("%s: %d", rows[i].line, engine_line_level(cgn_str_of(rows[i].line)));
}

static struct engine_end end = {.how = "exit status 1", .code = 1};
static char out[600];

static const char *sentence_of(const char *const *lines, size_t n, size_t then)
{
	struct engine_words w;
	engine_words_begin(&w);
	for (size_t i = 0; i < n; i++)
		engine_words_line(&w, cgn_str_of(lines[i]));
	for (size_t i = 0; i < then; i++)
		engine_words_line(&w, CGN_STR("GET /health 200 OK"));
	engine_words_tell(&w, &end, out, sizeof out);
	return out;
}

static void the_cause_beats_the_end_of_a_traceback(void **state)
{
	(void)state;
	static const char *const lines[] = {
		"(EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1] ValueError: No available memory for the cache blocks. "
		"Try increasing `gpu_memory_utilization` when initializing the engine.",
		"(APIServer pid=6) Traceback (most recent call last):",
		"(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.",
	};
	assert_string_equal(sentence_of(lines, 3, 0),
		"exit status 1: the weights leave no GPU memory for the KV cache; raise engine.memory_fraction, lower "
		"engine.n_ctx, or use more GPUs (engine.tp) (its last words: (EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:1] "
		"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
		"initializing the engine.)");
	assert_non_null(
		strstr(sentence_of(lines + 2, 1, 0), "its engine process failed; see the lines before it"));
}

static void what_the_engine_survived_did_not_end_it(void **state)
{
	(void)state;
	static const char *const lines[] = {
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"};
	assert_non_null(strstr(sentence_of(lines, 1, ENGINE_WORDS_LINES), "the GPU has no memory left"));
	assert_string_equal(sentence_of(lines, 1, ENGINE_WORDS_LINES + 1),
		"exit status 1 (its last words: GET /health 200 OK)");
}

static void each_end_has_its_sentence(void **state)
{
	(void)state;
	static const struct {
		struct engine_end end;
		const char *line, *says;
	} rows[] = {
		{{"killed by signal 9 (Killed)", -1, SIGKILL, true}, "loading",
			"killed it because the machine"},
		{{"killed by signal 9 (Killed)", -1, SIGKILL, false}, "loading",
			"another process sent SIGKILL"},
		{{"exit status 1", 1, 0, true}, "worker died", "killed it because the machine"},
		{{"exit status 0", 0, 0, true}, "bye", "exit status 0 (its last words: bye)"},
		{{"killed by signal 11 (Segmentation fault)", -1, SIGSEGV, false}, "", "the program crashed"},
		{{"killed by signal 4 (Illegal instruction)", -1, SIGILL, false}, "",
			"instructions that this processor"},
		{{"exit status 127", 127, 0, false}, "sh: 1: vllm: not found",
			"a program that it starts is missing"},
		{{"exit status 2", 2, 0, false}, "vllm: error: unrecognized arguments: --nope",
			"engine.extra_args"},
		{{"exit status 1", 1, 0, false},
			"huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url "
			"https://huggingface.co/x.",
			"HF_TOKEN"},
		{{"exit status 1", 1, 0, false}, "OSError: [Errno 98] Address already in use",
			"its port is in use"},
		{{"exit status 1", 1, 0, false},
			"0.00.009.034 E gguf_init_from_file: failed to open GGUF file '/x.gguf' (No such file or directory)",
			"correct engine.model_path"},
		{{"exit status 3", 3, 0, false}, "", "exit status 3"},
	};
	for (size_t i = 0; i < CGN_COUNT(rows); i++) {
		end = rows[i].end;
		if (strstr(sentence_of(&rows[i].line, 1, 0), rows[i].says) == NULL)
			fail_msg("%s: %s", rows[i].line, out);
	}
	end = (struct engine_end){.how = "exit status 1", .code = 1};
}

static void any_bytes_become_text(void **state)
{
	(void)state;
	static const char *const lines[] = {"\033[31mdied\x80 of \xc3\xa4\t\xff"};
	assert_string_equal(sentence_of(lines, 1, 0),
		"exit status 1 (its last words:  [31mdied? of \xc3\xa4 ?)");
	char longest[ENGINE_WORDS_BYTES * 2];
	memset(longest, 'x', sizeof longest);
	memcpy(longest + ENGINE_WORDS_BYTES - 2, "\xc3\xa4", 2); /* A character that would be cut */
	longest[sizeof longest - 1] = '\0';
	const char *const cut[] = {longest};
	assert_true(cgn_utf8_valid(sentence_of(cut, 1, 0), strlen(out)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_have_the_levels_of_their_formats),
		cmocka_unit_test(the_cause_beats_the_end_of_a_traceback),
		cmocka_unit_test(what_the_engine_survived_did_not_end_it),
		cmocka_unit_test(each_end_has_its_sentence),
		cmocka_unit_test(any_bytes_become_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
