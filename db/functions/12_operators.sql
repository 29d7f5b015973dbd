-- Operator tokens: how a human is known over REST and in scripts.
--
-- A token is minted here, shown once, and stored as SHA-256 only, as the credentials of endpoints are; it has
-- a name, may expire and may be revoked, and what was revoked stays on record. It acts as its human, on that
-- human's endpoints and on nothing else: every function it reaches takes the human from identify_operator(),
-- never from an argument of the caller; a session of the board (13_sign_in.sql) is known by the same function.
-- Nothing caches it, so that a revoked token acts no more, at once, nor does a session that it opened.
-- Lock order: a token's row is locked by nothing but its revocation and the note of its use, which waits for nobody.

create or replace function switchboard.mint_secret(p_prefix text) returns text
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    -- 32 bytes, 244 of their bits random: two uuids have six fixed bits each
    return p_prefix || rtrim(translate(encode(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()), 'base64'), '+/', '-_'), '=');
end $$;
comment on function switchboard.mint_secret(text) is 'A new secret: p_prefix, which says what it is, and 32 bytes in base64url.';

create or replace function switchboard.mint_operator_token(p_human_id uuid, p_name text, p_expires_at timestamptz, out token_id uuid, out token text)
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    token := mint_secret('sbo_');
    insert into operator_tokens as t (human_id, name, digest, created_at, expires_at)
    values (p_human_id, p_name, sha256(convert_to(token, 'UTF8')), clock(), p_expires_at)
    on conflict (human_id, name) where revoked_at is null do nothing returning t.id into token_id;
    if token_id is null then
        perform refuse('conflict', 'there is a token of that name: revoke it first, or choose another name');
    end if;
end $$;
comment on function switchboard.mint_operator_token(uuid, text, timestamptz) is
'Makes a token of the human, stores its SHA-256 and returns it: the only time it is seen. Errors: conflict. Writes operator_tokens.';

create or replace function switchboard.create_operator_token(p_human_id uuid, p_name text, p_expires_at timestamptz default null)
returns table (token_id uuid, name text, expires_at timestamptz, token text)
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_made record;
begin
    perform check_text('name', p_name, 100, true);
    if p_name ~ '[[:cntrl:]]' then
        perform refuse_argument('name', 'must be one line');
    elsif p_expires_at <= clock() or not isfinite(p_expires_at) then
        perform refuse_argument('expires_at', 'must be a time to come');
    elsif not exists (select from humans h where h.id = p_human_id) then
        perform refuse('not_found', 'there is no such human: add one with create_human');
    end if;
    v_made := mint_operator_token(p_human_id, p_name, p_expires_at);
    return query select v_made.token_id, p_name, p_expires_at, v_made.token;
end $$;
comment on function switchboard.create_operator_token(uuid, text, timestamptz) is
'Makes an operator token of the human p_human_id, returned this once. p_name: 1 to 100 characters on one line, unique among the tokens of the human that are not revoked; p_expires_at: NULL: never. Errors: invalid_argument, not_found, conflict. Writes operator_tokens.';

create or replace function switchboard.list_operator_tokens(p_human_id uuid default null)
returns table (token_id uuid, human text, name text, active boolean, created_at timestamptz, expires_at timestamptz, revoked_at timestamptz, last_used_at timestamptz)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select t.id, h.name, t.name, is_active(t.revoked_at, t.expires_at, clock()), t.created_at, t.expires_at, t.revoked_at, t.last_used_at
    from operator_tokens t join humans h on h.id = t.human_id
    where p_human_id is null or t.human_id = p_human_id
    order by h.name, t.name, t.created_at, t.id
$$;
comment on function switchboard.list_operator_tokens(uuid) is 'The operator tokens of a human, NULL: of all, revoked and expired ones too, without the tokens themselves. Reads operator_tokens, humans.';

create or replace function switchboard.revoke_operator_token(p_human_id uuid, p_token text) returns uuid
language plpgsql volatile security definer set search_path = switchboard, pg_temp
as $$
declare
    v_id uuid;
begin
    update operator_tokens t set revoked_at = clock()
    where t.human_id = p_human_id and t.revoked_at is null and t.id = (
        select k.id from operator_tokens k where k.human_id = p_human_id and k.revoked_at is null and (k.name = p_token or k.id = as_uuid(p_token))
        order by k.name = p_token desc limit 1)
    returning t.id into v_id;
    if v_id is null then
        perform refuse('not_found', 'there is no such token that is not revoked: list_operator_tokens shows them');
    end if;
    delete from human_sessions s where s.token_id = v_id;
    if found then
        perform tell_sessions();
    end if;
    return v_id;
end $$;
comment on function switchboard.revoke_operator_token(uuid, text) is
'Revokes a token of the human for good, with the sessions that it opened; what is under way ends, nothing begins any more. p_token: its name or id, not the token itself. Returns its id. Errors: not_found. Writes operator_tokens, human_sessions; notifies switchboard_control.';

create or replace function switchboard.identify_operator(p_digest bytea, out token_id uuid, out human_id uuid, out human text, out last_used_at timestamptz)
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_now timestamptz := clock();
begin
    select t.id, t.human_id, h.name, t.last_used_at into token_id, human_id, human, last_used_at
    from operator_tokens t join humans h on h.id = t.human_id
    where t.digest = p_digest and t.revoked_at is null and (t.expires_at is null or t.expires_at > v_now);
    if not found then
        select s.id, s.human_id, h.name, s.last_seen_at into token_id, human_id, human, last_used_at
        from human_sessions s join humans h on h.id = s.human_id
        where s.digest = p_digest and is_live_session(s, v_now);
    end if;
end $$;
comment on function switchboard.identify_operator(bytea) is 'Whose operator token, or session of the board, this is; NULLs when it opens nothing. p_digest: SHA-256 of the token or of the session''s secret; token_id: the id of the one or the other. Reads operator_tokens, human_sessions, humans.';

create or replace function switchboard.authenticate_operator(p_digest bytea) returns jsonb
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_who record := identify_operator(p_digest);
begin
    if v_who.token_id is null then
        return null;
    end if;
    return jsonb_build_object('token_id', v_who.token_id, 'human_id', v_who.human_id, 'human', v_who.human);
end $$;
comment on function switchboard.authenticate_operator(bytea) is 'Whose operator token, or session of the board, this is: token_id (of the one or the other), human_id, human; NULL for one that is unknown, over or revoked alike. p_digest: its SHA-256. Reads operator_tokens, human_sessions, humans.';

create or replace function switchboard.note_token_use(p_token_id uuid, p_last_used_at timestamptz) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_minute timestamptz := date_trunc('minute', clock());
begin
    if p_last_used_at >= v_minute then
        return;
    end if;
    update operator_tokens t set last_used_at = v_minute
    where t.id = (select k.id from operator_tokens k where k.id = p_token_id for no key update skip locked);
    if not found then
        update human_sessions s set last_seen_at = v_minute
        where s.id = (select k.id from human_sessions k where k.id = p_token_id for no key update skip locked);
    end if;
end $$;
comment on function switchboard.note_token_use(uuid, timestamptz) is 'Notes that a token, or a session of the board, is used, once a minute; waits for nobody. p_token_id, p_last_used_at: as identify_operator() tells them. Writes operator_tokens, human_sessions.';
