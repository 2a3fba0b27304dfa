/*-------------------------------------------------------------------------
 *
 * message.c
 *	  What replicas tell each other: a message of the log, as bytes.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_crc32c.h"

#include "base/compat.h"
#include "base/mip.h"
#include "replication/message.h"
#include "writeset/format.h"

#define MAGIC		"MIPR"
#define VERSION		1
#define HEADER		56
#define TRAILER		4
#define SETTINGS	24

/* ---- writing ---- */

Size
mip_message_size(const MipMessage *message)
{
	return HEADER + strlen(message->member) + message->length + TRAILER;
}

static uint32
checksum(const uint8 *bytes, Size length)
{
	pg_crc32c	crc;

	INIT_CRC32C(crc);
	COMP_CRC32C(crc, bytes, length);
	FIN_CRC32C(crc);
	return crc;
}

void
mip_message_write(const MipMessage *message, uint8 *bytes)
{
	Size		size = mip_message_size(message);
	Size		member = strlen(message->member);

	memcpy(bytes, MAGIC, 4);
	bytes[4] = VERSION;
	bytes[5] = message->kind;
	mipw_put_number(bytes + 6, member, 2);
	memcpy(bytes + 8, &message->id, 16);
	mipw_put_number(bytes + 24, message->snapshot, 8);
	mipw_put_number(bytes + 32, message->first, 8);
	mipw_put_number(bytes + 40, message->history, 8);
	mipw_put_number(bytes + 48, size, 8);
	memcpy(bytes + HEADER, message->member, member);
	memcpy(bytes + HEADER + member, message->body, message->length);
	mipw_put_number(bytes + size - TRAILER, checksum(bytes, size - TRAILER), TRAILER);
}

bytea *
mip_message_encode(const MipMessage *message)
{
	Size		size = mip_message_size(message);
	bytea	   *result = palloc(VARHDRSZ + size);

	SET_VARSIZE(result, VARHDRSZ + size);
	mip_message_write(message, (uint8 *) VARDATA(result));
	return result;
}

bytea *
mip_settings_message(const MipLogSettings *settings, MipMessageId id, char *member)
{
	uint8		body[SETTINGS];
	MipMessage	message = {
		.kind = MIP_MESSAGE_SETTINGS,.id = id,.member = member,
		.body = body,.length = SETTINGS
	};

	mipw_put_number(body, settings->window, 8);
	mipw_put_number(body + 8, settings->keys, 8);
	mipw_put_number(body + 16, settings->system, 8);
	return mip_message_encode(&message);
}

/* ---- reading ---- */

void
mip_refuse_message(const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_MIP_DIVERGED),
			 errmsg("this is not a message of a replicated site's log"),
			 errdetail("In the given bytes: %s.", detail)));
}

static bool
is_of_request(const MipMessage *message)
{
	return message->kind == MIP_MESSAGE_REQUEST || message->kind == MIP_MESSAGE_FENCE;
}

static void
set_parts(MipMessage *message)
{
	Size		before = 0;

	message->begun = message->family = 0;
	message->writeset = NULL;
	message->writeset_length = 0;
	if (is_of_request(message))
	{
		before = mipw_get_number(message->body, 4);
		message->begun = mipw_get_number(message->body + 4, 8);
		message->family = mipw_get_number(message->body + 12, 8);
	}
	if (message->kind == MIP_MESSAGE_TRANSACTION || message->kind == MIP_MESSAGE_REQUEST)
	{
		message->writeset = message->body + before;
		message->writeset_length = message->length - before;
	}
}

static MipMessage
frame_of(const uint8 *bytes, Size length)
{
	MipMessage	message;
	Size		member = mipw_get_number(bytes + 6, 2);

	message.kind = bytes[5];
	memcpy(&message.id, bytes + 8, 16);
	message.snapshot = mipw_get_number(bytes + 24, 8);
	message.first = mipw_get_number(bytes + 32, 8);
	message.history = mipw_get_number(bytes + 40, 8);
	message.member = pnstrdup((const char *) bytes + HEADER, member);
	message.body = bytes + HEADER + member;
	message.length = length - HEADER - member - TRAILER;
	return message;
}

MipMessage
mip_message_of(const uint8 *bytes, Size length)
{
	MipMessage	message = frame_of(bytes, length);

	set_parts(&message);
	return message;
}

static void
check_parts(const MipMessage *message)
{
	if (is_of_request(message) &&
		(message->length < MIP_MESSAGE_FAMILY ||
		 mipw_get_number(message->body, 4) < MIP_MESSAGE_FAMILY ||
		 mipw_get_number(message->body, 4) > message->length))
		mip_refuse_message("a request of another length");
}

/* Whoever made it made no others: what is damaged is found, what is malicious is not. */
MipMessage *
mip_message_decode(const bytea *varlena)
{
	const uint8 *bytes = (const uint8 *) VARDATA_ANY(varlena);
	Size		length = VARSIZE_ANY_EXHDR(varlena);
	MipMessage *message = palloc(sizeof(MipMessage));

	if (length < HEADER + TRAILER || memcmp(bytes, MAGIC, 4) != 0)
		mip_refuse_message("no such header");
	if (bytes[4] != VERSION)
		mip_refuse_message("an unknown version");
	if (mipw_get_number(bytes + 48, 8) != length || mipw_get_number(bytes + 6, 2) > length - HEADER - TRAILER)
		mip_refuse_message("another length");
	if (mipw_get_number(bytes + length - TRAILER, TRAILER) != checksum(bytes, length - TRAILER))
		mip_refuse_message("another checksum");
	*message = frame_of(bytes, length);
	check_parts(message);
	set_parts(message);
	if (message->first > message->snapshot || message->begun > message->snapshot)
		mip_refuse_message("changes behind the snapshot");
	return message;
}

MipLogSettings
mip_message_settings(const MipMessage *message)
{
	MipLogSettings settings;

	if (message->kind != MIP_MESSAGE_SETTINGS || message->length != SETTINGS)
		mip_refuse_message("no settings");
	settings.window = mipw_get_number(message->body, 8);
	settings.keys = mipw_get_number(message->body + 8, 8);
	settings.system = mipw_get_number(message->body + 16, 8);
	if (settings.window == 0 || settings.keys == 0)
		mip_refuse_message("settings that remember nothing");
	return settings;
}

/* ---- history ---- */

uint64
mip_history_next(uint64 history, uint64 position, uint8 what, const uint8 *bytes, Size length)
{
	uint8		verdict[9];

	mipw_put_number(verdict, position, 8);
	verdict[8] = what;
	history = mipw_fnv(history ^ MIPW_FNV, verdict, sizeof(verdict));
	return mipw_fnv(history, bytes, length);
}
