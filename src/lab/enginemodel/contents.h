/* SPDX-License-Identifier: Apache-2.0 */
/* contents: the tokens, digests and images in the blocks of one sequence, for listeners that describe blocks.
 * The engine model itself uses hashes only. Pure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/str.h"
#include "base/digest/digest.h"

/* The cache_salt of a request, shared by the blocks that begin its prompts. The reference count is for one
 * thread. */
#define ENGINEMODEL_SALT_MAX 1024
struct enginemodel_salt {
	uint32_t refs;
	uint32_t n;
	char text[];
};
struct enginemodel_salt *enginemodel_salt_ref(struct enginemodel_salt *s); /* Accepts NULL. */
void enginemodel_salt_unref(struct enginemodel_salt **take);
static inline struct cgn_str enginemodel_salt_str(const struct enginemodel_salt *s) /* Empty for NULL. */
{
	return s != NULL ? (struct cgn_str){s->text, s->n} : (struct cgn_str){0};
}

/* The place of an image in a prompt. */
struct enginemodel_image {
	uint64_t hash, at; /* Hash of the image's source; position of its first token. */
};
/* Contents of the full blocks of one sequence. Owns its arrays; 4 * block_tokens + 40 bytes a block. */
struct enginemodel_contents {
	uint32_t *tokens; /* Token ids, block after block. */
	/* Short digest of the prefix that ends with each block, in the chain of base/digest. */
	uint64_t *digests;
	struct digest *names; /* Full digests of the same prefixes. */
	struct enginemodel_image *images;
	uint32_t n_images, cap_images;
	uint32_t model;                /* Index into the served models. */
	struct enginemodel_salt *salt; /* NULL: no salt. */
};
void enginemodel_contents_free(struct enginemodel_contents **take);
