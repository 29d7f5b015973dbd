-- Clock and identities.
--
-- Every reading of time in this schema is switchboard.now() (inside: clock()), taken once per call and passed on.
-- It is the wall clock, not the transaction's start: a lease taken from pg_catalog.now() inside
-- an old transaction would already be over. Tests move it in two ways that no tenant can use:
--   set switchboard.test_now = '2030-01-01 00:00Z'   for one session, if its login is a member of the owner role;
--   update switchboard.settings set is_test = true, test_now = …   for every session of a test database.
-- It is STABLE so that a comparison with it can be an index condition (a VOLATILE one scans).
--
-- Ids are version 7: 48 bits of milliseconds, 12 bits of the microseconds within, then random. So
-- ordering by id is ordering by (created_at, id), and lists need no index of their own.

create or replace function switchboard.clock() returns timestamptz
language plpgsql stable
as $$
declare
    v_session text := current_setting('switchboard.test_now', true);
    v_stored  timestamptz;
begin
    if v_session <> '' and pg_has_role(session_user, 'switchboard_owner', 'member') then
        return v_session::timestamptz;
    end if;
    select s.test_now into v_stored from switchboard.settings s;  -- NULL but in a test database
    return coalesce(v_stored, clock_timestamp());
end $$;
comment on function switchboard.clock() is
'now(), for the functions of this schema: on the path of every call, so it qualifies names instead of pinning search_path. Reads settings.';

create or replace function switchboard.now() returns timestamptz
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select clock()
$$;
comment on function switchboard.now() is
'The clock of every function here: wall clock, or the test clock where one is allowed (setting switchboard.test_now for members of switchboard_owner; settings.test_now in a test database). Reads settings.';

create or replace function switchboard.new_id(p_at timestamptz, p_ordinal integer default null) returns uuid
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_us bigint := greatest(0, extract(epoch from p_at) * 1000000)::bigint;
begin
    -- milliseconds, then version 7 with floor(4096 * fraction of the millisecond), then variant and randomness
    return (lpad(to_hex(v_us / 1000), 12, '0') || to_hex(28672 + (v_us % 1000) * 4096 / 1000)
        || case when p_ordinal is null then substring(gen_random_uuid()::text from 20)
                else to_hex(32768 + (p_ordinal & 16383)) || substring(gen_random_uuid()::text from 25) end)::uuid;
end $$;
comment on function switchboard.new_id(timestamptz, integer) is
'A version 7 uuid for the instant p_at (1970 or later), random but for the time. p_ordinal (0..16383) keeps the order of several made for one instant.';

create or replace function switchboard.as_uuid(p_text text) returns uuid
language plpgsql immutable
as $$
begin
    -- the cast alone would admit braces and other places of the hyphens; one regular expression for both costs five times as much
    if p_text like '________-____-____-____-____________' and length(replace(p_text, '-', '')) = 32 and p_text ~ '^[-0-9a-fA-F]+$' then
        return p_text::uuid;
    end if;
    return null;
end $$;
comment on function switchboard.as_uuid(text) is
'The uuid in its canonical form, any case; NULL for anything else, so that a malformed id behaves like an unknown one. On the path of every call, so it does not pin search_path: it names nothing of any schema.';
