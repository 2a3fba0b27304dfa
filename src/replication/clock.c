/*-------------------------------------------------------------------------
 *
 * clock.c
 *	  Literals that go by the clock.
 *
 * 'now' and its like become values where a statement is read, which each replica does by itself; what is
 * left of them afterwards is a constant. Of which type a literal will be is known to the expression only
 * that it is in, and types of dates may be within others. So it goes by its words, whatever it is for.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <ctype.h>

#include "parser/parser.h"
#include "parser/scanner.h"

#include "replication/clock.h"

static bool
is_by_clock(const char *word)
{
	static const char *const words[] = {
		"now", "today", "tomorrow", "yesterday"
	};

	for (int i = 0; i < lengthof(words); i++)
		if (strcmp(words[i], word) == 0)
			return true;
	return false;
}

/* Words are of letters; what arrays and rows quote with may be within one. */
static bool
has_word_by_clock(const char *text)
{
	char	   *word = palloc(strlen(text) + 1);
	int			length = 0;
	bool		found = false;

	for (const char *c = text; !found; c++)
	{
		if (*c == '\\' || *c == '"')
			continue;
		if (isalpha((unsigned char) *c) || IS_HIGHBIT_SET(*c))
		{
			word[length++] = pg_tolower((unsigned char) *c);
			continue;
		}
		word[length] = '\0';
		found = is_by_clock(word);
		length = 0;
		if (*c == '\0')
			break;
	}
	pfree(word);
	return found;
}

static bool
is_unicode(const char *token)
{
	return (token[0] == 'u' || token[0] == 'U') && token[1] == '&' && token[2] == '\'';
}

/* Does the token that begins here have its text from quotes? Identifiers have others, and parameters have digits. */
static bool
is_literal(const char *token)
{
	if (is_unicode(token))
		return true;
	if (token[0] == 'e' || token[0] == 'E')
		return token[1] == '\'';
	return token[0] == '\'' || (token[0] == '$' && !isdigit((unsigned char) token[1]));
}

static bool
has_no_expressions(const RawStmt *raw)
{
	switch (nodeTag(raw->stmt))
	{
		case T_AlterEnumStmt:
		case T_CommentStmt:
		case T_CreateEnumStmt:
		case T_CreateExtensionStmt:
		case T_SecLabelStmt:
			return true;
		default:
			return false;
	}
}

static bool
is_keyword(const char *token, const char *keyword)
{
	const char *c;

	for (c = token; *keyword != '\0' && pg_tolower((unsigned char) *c) == *keyword; c++)
		keyword++;
	return *keyword == '\0' &&
		!(isalnum((unsigned char) *c) || IS_HIGHBIT_SET(*c) || *c == '_' || *c == '$');
}

const char *
mip_literal_by_clock(const RawStmt *raw, const char *command)
{
	const char *begin = command + raw->stmt_location;
	char	   *statement = raw->stmt_len ? pnstrdup(begin, raw->stmt_len) : pstrdup(begin);
	core_yy_extra_type extra;
	core_YYSTYPE value;
	YYLTYPE		at;
	core_yyscan_t scanner;
	const char *found = NULL;
	const char *unicode = NULL; /* the literal before, where it may have an
								 * escape character of its own */
	bool		is_body = false;	/* of a function, which is not parsed
									 * until it is executed */

	if (has_no_expressions(raw))
		return NULL;
	scanner = scanner_init(statement, &extra, &ScanKeywords, ScanKeywordTokens);
	while (found == NULL && core_yylex(&value, &at, scanner) != 0)
	{
		const char *token = statement + at;

		if (is_literal(token) && !is_body &&
			(has_word_by_clock(value.str) || (is_unicode(token) && strchr(value.str, '\\'))))
			found = pstrdup(value.str);
		if (unicode && is_keyword(token, "uescape"))
			found = unicode;
		unicode = is_unicode(token) ? pstrdup(value.str) : NULL;
		is_body = IsA(raw->stmt, CreateFunctionStmt) && is_keyword(token, "as");
	}
	scanner_finish(scanner);
	return found;
}
