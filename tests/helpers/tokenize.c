/* SPDX-License-Identifier: Apache-2.0 */
/* tokenize FILE [cuts]: reads texts from stdin, each after its length (u32, little-endian); writes for each
 * text the number of its ids and the ids, with special tokens, in the same format to stdout. With "cuts",
 * every cut of each text is also tried, and a text that is not the sum of its parts is an error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/core/buf.h"
#include "policy/text/tokenizer/tokenizer.h"

static int tokenize_die(const char *what, const char *why)
{
	(void)fprintf(stderr, "tokenize: %s: %s\n", what, why);
	return 1;
}

static bool file_read(const char *path, struct cgn_buf *out)
{
	FILE *f = fopen(path, "rb");
	size_t n = 1;
	while (f != NULL && n > 0) {
		char *room = cgn_buf_room(out, 1 << 20);
		n = room != NULL ? fread(room, 1, 1 << 20, f) : 0;
		cgn_buf_grew(out, n);
	}
	if (f != NULL)
		(void)fclose(f);
	return f != NULL && !out->bad;
}

static bool parts_are_the_whole(const struct tokenizer *t, struct tokenizer_work *w, struct cgn_str text,
	size_t at, const struct tokenizer_ids *whole)
{
	struct tokenizer_ids parts = {0};
	const struct cgn_str left = {text.p, at}, right = {text.p + at, text.n - at};
	bool same = cgn_ok(tokenizer_encode(t, w, left, TOKENIZER_HEAD, &parts, NULL)) &&
		cgn_ok(tokenizer_encode(t, w, right, TOKENIZER_CONTINUED | TOKENIZER_TAIL, &parts, NULL)) &&
		parts.n == whole->n && memcmp(parts.ids, whole->ids, whole->n * sizeof *whole->ids) == 0;
	tokenizer_ids_fini(&parts);
	return same;
}

static bool cuts_hold(const struct tokenizer *t, struct tokenizer_work *w, struct cgn_str text,
	const struct tokenizer_ids *whole, size_t *tried)
{
	size_t cuts[64], n = tokenizer_cuts(t, text, cuts, CGN_COUNT(cuts));
	for (size_t i = 0; i < n; i++)
		if (!parts_are_the_whole(t, w, text, cuts[i], whole))
			return false;
	*tried += n;
	return true;
}

int main(int argc, char **argv)
{
	struct cgn_err err = {0};
	struct cgn_buf file = {0}, text = {0};
	struct tokenizer *t = NULL;
	struct tokenizer_work *w = NULL;
	struct tokenizer_ids ids = {0};
	uint32_t n;
	size_t tried = 0;
	if (argc < 2 || !file_read(argv[1], &file))
		return tokenize_die("cannot read", argc < 2 ? "no file" : argv[1]);
	if (!cgn_ok(tokenizer_load(cgn_buf_view(&file), &t, &err)))
		return tokenize_die(cgn_code_name(err.code), err.msg);
	cgn_buf_fini(&file);
	w = tokenizer_work_new(t);
	while (fread(&n, sizeof n, 1, stdin) == 1) {
		text.n = ids.n = 0;
		char *room = cgn_buf_room(&text, n + 1);
		if (room == NULL || fread(room, 1, n, stdin) != n)
			return tokenize_die("stdin", "ends early");
		cgn_buf_grew(&text, n);
		if (!cgn_ok(tokenizer_encode(t, w, cgn_buf_view(&text), TOKENIZER_SPECIALS, &ids, &err)))
			return tokenize_die(cgn_code_name(err.code), err.msg);
		if (argc > 2 && !cuts_hold(t, w, cgn_buf_view(&text), &ids, &tried))
			return tokenize_die("a cut changes the ids of", cgn_buf_z(&text));
		n = (uint32_t)ids.n;
		(void)fwrite(&n, sizeof n, 1, stdout);
		if (n > 0)
			(void)fwrite(ids.ids, sizeof *ids.ids, n, stdout);
	}
	if (argc > 2)
		(void)fprintf(stderr, "cuts %zu\n", tried);
	cgn_buf_fini(&text);
	tokenizer_ids_fini(&ids);
	tokenizer_work_free(&w);
	tokenizer_free(&t);
	return 0;
}
