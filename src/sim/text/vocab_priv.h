/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include "sim/text/vocab.h"

/* The bytes of each id, as the decoders of tokenizer.json produce them. ByteLevel: each character stands for
 * a byte; else U+2581 is a space and <0xNN> a byte. Added tokens are their content. */
struct vocab_texts {
	struct cgn_buf bytes;
	uint32_t *end; /* End of each id's bytes, which begin at the end of the id before. */
	uint32_t n;
};
CGN_RC vocab_texts_read(struct json_val root, uint32_t n, struct vocab_texts *out, struct cgn_err *err);
void vocab_texts_fini(struct vocab_texts *t);
