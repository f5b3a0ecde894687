/* SPDX-License-Identifier: Apache-2.0 */
/* toy_tokenizer: a small hand-written tokenizer.json: bytes in GPT-2's spelling (id = byte), a few merges,
 * three special tokens, and a <s> before a text that is encoded with specials. */
#pragma once
#include "base/core/buf.h"

#define TOY_START 262 /* <|im_start|> */
#define TOY_END   263 /* <|im_end|> */
#define TOY_BOS   264 /* <s> */

static inline uint32_t toy_spelling(unsigned byte)
{
	uint32_t next = 256;
	for (unsigned b = 0; b < 256; b++) {
		bool plain = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae);
		if (b == byte)
			return plain ? b : next;
		next += !plain;
	}
	return 0;
}

static inline void toy_put(struct cgn_buf *b, uint32_t c)
{
	if (c == '"' || c == '\\')
		cgn_buf_fmt(b, "\\%c", (char)c);
	else if (c < 0x80)
		cgn_buf_char(b, (char)c);
	else
		cgn_buf_fmt(b, "\\u%04x", c);
}

static inline void toy_tokenizer(struct cgn_buf *b)
{
	static const char *const merges[] = {"t h", "th e", "a n", "i n", "e r", "o n"};
	static const char *const merged[] = {"th", "the", "an", "in", "er", "on"};
	static const char *const special[] = {"<|im_start|>", "<|im_end|>", "<s>"};
	cgn_buf_putz(b, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
	for (int i = 0; i < 3; i++)
		cgn_buf_fmt(b,
			"%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}",
			i > 0 ? "," : "", TOY_START + i, special[i]);
	cgn_buf_putz(b,
		"],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
		"\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
		"\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],"
		"\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[264],\"tokens\":[\"<s>\"]}}},\"decoder\":{\"type\":\"ByteLevel\"},"
		"\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
		"\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,\"vocab\":{");
	for (unsigned i = 0; i < 256; i++) {
		cgn_buf_putz(b, i > 0 ? ",\"" : "\"");
		toy_put(b, toy_spelling(i));
		cgn_buf_fmt(b, "\":%u", i);
	}
	for (unsigned i = 0; i < 6; i++)
		cgn_buf_fmt(b, ",\"%s\":%u", merged[i], 256 + i);
	cgn_buf_putz(b, "},\"merges\":[");
	for (unsigned i = 0; i < 6; i++)
		cgn_buf_fmt(b, "%s\"%s\"", i > 0 ? "," : "", merges[i]);
	cgn_buf_putz(b, "]}}");
}
