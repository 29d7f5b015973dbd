-- Errors.
--
-- One table for everybody: SQL callers branch on the SQLSTATE, MCP and REST callers on the code,
-- HTTP clients on the status. MESSAGE is for people and tells the next step; DETAIL is JSON for
-- programs. No message ever contains an id, a name or a value of anybody's.
-- 40001 (serialization failure) and 40P01 (deadlock) stay what they are: try again.

create or replace function switchboard.error_table()
returns table (sqlstate text, code text, http_status integer, retry boolean, message text)
language sql immutable set search_path = switchboard, pg_temp
as $$
    values
    ('SB400', 'invalid_argument', 400, false, 'an argument is not valid: correct the field that is named and call again'),
    ('SB401', 'unauthenticated',  401, false, 'the credential is not valid here: ask the owner of the endpoint for a current one'),
    ('SB403', 'forbidden',        403, false, 'the grant of this endpoint does not cover that: ask its owner to widen the grant'),
    ('SB404', 'not_found',        404, false, 'there is no such thing here: list what there is and use an id from the list'),
    ('SB409', 'conflict',         409, false, 'its state does not allow that now: read it again, then decide'),
    ('SB411', 'ceiling_exceeded', 409, false, 'the grant allows no more of these: delete one, or ask the owner to raise the ceiling'),
    ('SB413', 'too_large',        413, false, 'that is larger than what is accepted: send less, or send a reference to it'),
    ('SB429', 'deferred',         429, true,  'the budget of the queue is used up: wait until next_eligible_at, then call again'),
    ('SB430', 'rate_limited',     429, true,  'too many calls: wait as long as Retry-After says, then call again'),
    ('SB500', 'internal',         500, true,  'something failed here: try again, and tell the operator if it goes on'),
    ('SB503', 'unavailable',      503, true,  'the service cannot answer right now: try again in a moment')
$$;
comment on function switchboard.error_table() is
'All errors of the product: SQLSTATE, code, HTTP status, whether the same call may succeed later, and the message for people.';

create or replace function switchboard.refuse(p_code text, p_message text default null, p_detail jsonb default '{}') returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
declare
    v_error record;
begin
    select * into strict v_error from error_table() e where e.code = p_code;
    raise exception using errcode = v_error.sqlstate, message = coalesce(p_message, v_error.message), detail = p_detail::text;
end $$;
comment on function switchboard.refuse(text, text, jsonb) is
'Raises the error p_code of error_table() with p_message (default: the table''s) and p_detail as DETAIL. The only place that raises.';

create or replace function switchboard.refuse_argument(p_field text, p_reason text) returns void
language plpgsql volatile set search_path = switchboard, pg_temp
as $$
begin
    perform refuse('invalid_argument', p_field || ' ' || p_reason, jsonb_build_object('field', p_field, 'reason', p_reason));
end $$;
comment on function switchboard.refuse_argument(text, text) is
'Raises invalid_argument for the field p_field (without p_); p_reason completes the sentence «field reason».';

create or replace function switchboard.error_value(p_sqlstate text, p_message text, p_detail text) returns jsonb
language plpgsql stable set search_path = switchboard, pg_temp
as $$
declare
    v_error record;
    v_code  text := case
        when p_sqlstate like 'SB%' then null
        when p_sqlstate in ('25006', '40001', '40P01', '55P03') or left(p_sqlstate, 2) in ('53', '57', '58') then 'unavailable'  -- 53100: the disk is full
        else 'internal' end;
begin
    select * into v_error from error_table() e where e.sqlstate = p_sqlstate or e.code = v_code;
    if v_code is not null then  -- foreign errors: nothing of their text leaves the database
        return jsonb_build_object('error', jsonb_build_object('code', v_error.code, 'message', v_error.message));
    end if;
    return jsonb_build_object('error',
        coalesce(nullif(p_detail, '')::jsonb, '{}') || jsonb_build_object('code', v_error.code, 'message', p_message));
end $$;
comment on function switchboard.error_value(text, text, text) is
'An exception as the error object of MCP and REST: {"error": {code, message, …details}}. Foreign errors become unavailable (worth a retry) or internal, without their text.';
